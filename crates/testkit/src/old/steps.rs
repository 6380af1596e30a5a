//! A call that is played request by request.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// A call that stands still between two requests: it tells `D` of each, and ends with a `T` or an
/// `E`. Dropped, it sends no more: so ends a plugin that is killed.
#[must_use = "it does nothing until it is told to"]
pub struct Call<D, T, E> {
    go: Sender<()>,
    done: Receiver<D>,
    player: JoinHandle<Played<T, E>>,
}

impl<D: Send + 'static, T: Send + 'static, E: Send + 'static> Call<D, T, E> {
    /// A call that has not begun yet, with what it sends its requests by, and how long it takes
    /// before each.
    pub(super) fn new<R: Send + 'static>(
        requests: R,
        delay: Duration,
        verb: impl FnOnce(Steps<R, D>) -> Played<T, E> + Send + 'static,
    ) -> Self {
        let (go, may_go) = channel();
        let (tell, done) = channel();
        let steps = Steps { requests, may_go, tell, delay };
        Self { go, done, player: thread::spawn(move || verb(steps)) }
    }

    /// Sends the next request and tells what it did; none when the call is over.
    pub fn step(&mut self) -> Option<D> {
        let _ = self.go.send(());
        self.done.recv().ok()
    }

    /// Goes on to the end: what the program would have printed.
    pub fn run(mut self) -> Result<T, E> {
        while self.step().is_some() {}
        match self.player.join().unwrap() {
            Ok(result) => Ok(result),
            Err(Ended::Failed(reason)) => Err(reason),
            Err(Ended::Dropped) => unreachable!("it may go on until it has ended"),
        }
    }
}

impl<D: Send + 'static, T: Send + 'static, E: Send + 'static> Iterator for Call<D, T, E> {
    type Item = D;

    fn next(&mut self) -> Option<D> {
        self.step()
    }
}

/// Why a call ended without a result.
#[derive(Debug)]
pub(super) enum Ended<E> {
    Failed(E),
    Dropped,
}

pub(super) type Played<T, E> = Result<T, Ended<E>>;

/// Where a player sends its requests, each when it may.
pub(super) struct Steps<R, D> {
    requests: R,
    may_go: Receiver<()>,
    tell: Sender<D>,
    delay: Duration,
}

impl<R, D> Steps<R, D> {
    /// One request, and what to tell of it.
    pub(super) fn step<T, E>(
        &self,
        request: impl FnOnce(&R) -> Result<T, E>,
        done: impl FnOnce(&T) -> D,
    ) -> Played<T, E> {
        self.may_go.recv().map_err(|_| Ended::Dropped)?;
        thread::sleep(self.delay);
        let answer = request(&self.requests).map_err(Ended::Failed)?;
        self.tell.send(done(&answer)).map_err(|_| Ended::Dropped)?;
        Ok(answer)
    }
}
