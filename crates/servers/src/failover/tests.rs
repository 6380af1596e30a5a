use std::time::Duration;

use super::fake::{Fake, SECOND, failover, pass, within};
use super::*;

fn away<T>() -> Result<T, RequestError> {
    Err(RequestError::not_done("away"))
}

fn busy<T>(wait: Duration) -> Result<T, RequestError> {
    Err(RequestError::not_done("busy").sent(true).wait(Some(wait)))
}

fn rejected<T>() -> Result<T, RequestError> {
    Err(RequestError::rejected("no such thing").sent(true))
}

fn says_no() -> RequestError {
    RequestError::refused(Error::new(ErrorCode::BACKEND, "no"))
}

fn strange() -> RequestError {
    RequestError::not_understood(Error::new(ErrorCode::BACKEND, "strange"))
}

#[test]
fn servers_are_asked_in_order_from_the_one_that_answered_last() {
    let mut failover = failover(3, |place, number| match (number, place) {
        (0..3, 0) | (3.., 1) => Ok("yes"),
        _ => away(),
    });
    failover.prefer("b");
    failover.prefer("elsewhere");
    assert_eq!(failover.read(()).unwrap(), "yes");
    assert_eq!(failover.transport().places(), [1, 2, 0]);
    assert_eq!((failover.answering(), failover.preferred()), (0, None));
    assert_eq!(failover.read(()).unwrap(), "yes");
    assert_eq!(failover.read(()).unwrap(), "yes");
    assert_eq!(failover.transport().places()[3..], [0, 1, 1]);
    assert_eq!((failover.answering(), failover.preferred()), (1, Some("b")));
}

#[test]
fn a_read_goes_on_whatever_became_of_it() {
    for trouble in [RequestError::not_done, RequestError::unknown, RequestError::rejected] {
        let reply = |place, _| if place == 0 { Err(trouble("x")) } else { Ok("yes") };
        assert_eq!(failover(2, reply).read(()).unwrap(), "yes");
    }
}

#[test]
fn a_change_goes_on_where_it_is_certainly_not_done() {
    for trouble in [
        RequestError::not_done("x"),
        RequestError::rejected("x"),
        RequestError::not_done("x").sent(true),
    ] {
        let mut first = Some(trouble);
        let mut failover = failover(2, |_, _| first.take().map_or(Ok("yes"), Err));
        assert_eq!(failover.write(()).unwrap(), Some("yes"));
        assert_eq!(failover.transport().places(), [0, 1]);
    }
}

#[test]
fn a_change_that_may_be_done_ends_and_the_next_server_is_asked_then() {
    for trouble in [|| RequestError::unknown("x"), strange] {
        let mut failover =
            failover(2, |_, number| if number % 2 == 0 { Err(trouble()) } else { Ok("yes") });
        for first in [0, 1] {
            assert_eq!(failover.write(()).unwrap(), None);
            assert_eq!(failover.answering(), 1 - first);
            assert_eq!(failover.read(()).unwrap(), "yes");
        }
        assert_eq!(failover.transport().places(), [0, 1, 1, 0]);
    }
}

#[test]
fn an_answer_that_is_not_understood_is_an_error_for_a_read() {
    let mut failover = failover(2, |_, _| Err(strange()));
    assert_eq!(failover.read(()).unwrap_err().to_string(), "Test at a: strange");
    assert_eq!(failover.transport().places(), [0]);
    assert!(!failover.is_refused());
}

#[test]
fn what_the_service_refuses_is_an_error_at_once() {
    let mut failover = failover(3, |place, number| match (place, number) {
        (0, _) => away(),
        (_, 1 | 2) => Err(says_no()),
        _ => Ok("yes"),
    });
    let error = failover.write(()).unwrap_err();
    assert_eq!((&*error.to_string(), error.code()), ("Test at b: no", ErrorCode::BACKEND));
    assert!(failover.is_refused());
    // A refusal is an answer: it ends the trouble, and its server stays the first.
    assert_eq!(failover.left(), 20 * SECOND);
    assert!(failover.read(()).is_err());
    assert_eq!(failover.read(()).unwrap(), "yes");
    assert!(!failover.is_refused());
    assert_eq!(failover.transport().places(), [0, 1, 1, 1]);
}

#[test]
fn a_server_that_does_not_do_it_is_not_asked_again() {
    let mut failover = failover(2, |place, number| match place {
        0 => rejected(),
        _ if number < 3 => Err(RequestError::unknown("x")),
        _ => Ok("yes"),
    });
    assert_eq!(failover.read(()).unwrap(), "yes");
    assert_eq!(failover.transport().places(), [0, 1, 1, 1]);
}

#[test]
fn what_a_server_does_not_do_it_is_asked_anew_with_another_request() {
    let mut failover = failover(2, |_, number| if number < 2 { rejected() } else { Ok("yes") });
    assert!(failover.read(()).is_err());
    assert_eq!(failover.read(()).unwrap(), "yes");
    assert_eq!(failover.transport().places(), [0, 1, 0]);
}

#[test]
fn where_no_server_does_it_the_call_ends_at_once() {
    let mut failover = failover(2, |_, _| {
        pass(SECOND);
        rejected()
    });
    let error = failover.write(()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "every Test server rejected the request; a: no such thing; b: no such thing"
    );
    assert_eq!(error.code(), ErrorCode::BACKEND);
    assert!(failover.is_refused());
    assert!(failover.transport().pauses.is_empty());
    // A refusal takes no time from what is asked next.
    assert_eq!(failover.left(), 20 * SECOND);
}

#[test]
fn those_that_are_away_are_asked_three_times_where_the_others_do_not_do_it() {
    let mut failover = failover(2, |place, _| if place == 0 { rejected() } else { away() });
    let error = failover.read(()).unwrap_err();
    assert_eq!(failover.transport().places(), [0, 1, 1, 1]);
    assert_eq!(error.code(), ErrorCode::BACKEND);
    assert!(failover.is_refused());
}

#[test]
fn each_round_waits_longer_for_one_of_several_servers() {
    let slow = |_, number| {
        pass(SECOND);
        if number == 13 { Ok("yes") } else { Err(RequestError::unknown("x")) }
    };
    let mut several = within(2, 1000 * SECOND, 10_000 * SECOND, slow);
    assert_eq!(several.read(()).unwrap(), "yes");
    let Fake { asked, pauses, .. } = several.transport();
    let patience: Vec<_> = asked.iter().step_by(2).map(|(_, time)| time.as_millis()).collect();
    assert_eq!(patience, [1_500, 3_000, 6_000, 12_000, 24_000, 24_000, 24_000]);
    let pauses: Vec<_> = pauses.iter().map(Duration::as_millis).collect();
    assert_eq!(pauses, [100, 200, 300, 400, 500, 500]);
    // All the time is for the only one.
    let mut only = within(1, 1000 * SECOND, 10_000 * SECOND, |_, _| Ok("yes"));
    only.read(()).unwrap();
    assert_eq!(only.transport().asked, [(0, 1000 * SECOND)]);
}

#[test]
fn the_time_runs_from_the_first_trouble_to_the_next_answer() {
    let mut failover = failover(2, |place, number| {
        pass(SECOND);
        match (place, number) {
            (0, 0) => Err(RequestError::unknown("x")),
            (1, 1) => Err(strange()),
            _ => Ok("yes"),
        }
    });
    assert_eq!(failover.left(), 20 * SECOND);
    assert_eq!(failover.write(()).unwrap(), None);
    assert_eq!(failover.left(), 19 * SECOND);
    assert!(failover.read(()).is_err());
    assert_eq!(failover.left(), 18 * SECOND);
    assert_eq!(failover.read(()).unwrap(), "yes");
    assert_eq!(failover.left(), 20 * SECOND);
}

#[test]
fn a_server_that_wants_to_be_left_alone_is() {
    // Alone: the pause is as long as it says, where that is longer than a pause.
    for (wait, pause) in [(2 * SECOND, 2 * SECOND), (PAUSE / 2, PAUSE)] {
        let mut only = failover(1, |_, number| if number == 0 { busy(wait) } else { Ok("yes") });
        assert_eq!(only.write(()).unwrap(), Some("yes"));
        assert_eq!(only.transport().pauses, [pause]);
    }
    // Another one is asked meanwhile.
    let mut failover = failover(2, |place, number| match (place, number) {
        (0, _) => busy(3600 * SECOND),
        (_, 3) => Ok("yes"),
        _ => away(),
    });
    assert_eq!(failover.write(()).unwrap(), Some("yes"));
    assert_eq!(failover.transport().places(), [0, 1, 1, 1]);
    assert_eq!(failover.transport().pauses, [PAUSE, 2 * PAUSE]);
}

#[test]
fn a_server_that_may_have_done_a_change_is_left_alone_where_it_wants_to_be() {
    let mut failover = failover(2, |place, number| match (place, number) {
        (0, _) => Err(RequestError::unknown("x").wait(Some(3600 * SECOND))),
        (_, 2) => Ok("yes"),
        _ => away(),
    });
    assert_eq!(failover.write(()).unwrap(), None);
    assert_eq!(failover.read(()).unwrap(), "yes");
    assert_eq!(failover.transport().places(), [0, 1, 1]);
}

#[test]
fn where_all_want_to_be_left_alone_for_longer_than_there_is_time_the_call_ends_at_once() {
    for longest in [21 * SECOND, Duration::MAX] {
        let mut failover = failover(3, |place, _| match place {
            0 => busy(longest),
            1 => busy(30 * SECOND),
            _ => rejected(),
        });
        let error = failover.write(()).unwrap_err();
        assert_eq!(error.code(), ErrorCode::TRY_AGAIN);
        assert_eq!(error.to_string(), "no Test server answers; a: busy; b: busy; c: no such thing");
        assert_eq!(failover.transport().places(), [0, 1, 2]);
        assert!(failover.transport().pauses.is_empty());
    }
}

#[test]
fn what_was_wrong_last_is_told() {
    let mut failover = failover(1, |_, number| match number {
        0 => away(),
        _ => {
            pass(20 * SECOND);
            Err(RequestError::unknown("late"))
        }
    });
    let error = failover.read(()).unwrap_err();
    assert_eq!(error.to_string(), "no Test server answers; a: late");
}

#[test]
fn what_was_wrong_before_an_answer_is_not_told() {
    let mut failover = failover(2, |place, number| match (place, number) {
        (0, _) => away(),
        (_, 1) => Ok("yes"),
        _ => {
            pass(20 * SECOND);
            Err(RequestError::unknown("late"))
        }
    });
    assert_eq!(failover.read(()).unwrap(), "yes");
    let error = failover.read(()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no Test server answers; a: not asked: deadline exceeded; b: late"
    );
}

#[test]
fn a_try_that_had_hardly_any_time_does_not_hide_what_was_wrong() {
    let reply = |_, number| {
        pass(if number == 0 { Duration::from_millis(800) } else { SECOND });
        Err(if number == 0 {
            RequestError::not_done("refused")
        } else {
            RequestError::unknown("late")
        })
    };
    let mut failover = within(1, SECOND, 1000 * SECOND, reply);
    let error = failover.read(()).unwrap_err();
    assert_eq!(error.to_string(), "no Test server answers; a: refused");
    let last = failover.transport().asked[1].1;
    assert!(last < SHORTEST, "{last:?}");
}

#[test]
fn a_server_that_was_not_asked_in_time_is_named() {
    let reply = |_, _| {
        pass(SECOND);
        away()
    };
    let error = within(2, SECOND, 1000 * SECOND, reply).read(()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no Test server answers; a: away; b: not asked: deadline exceeded"
    );
}

#[test]
fn a_call_whose_time_is_over_asks_no_server() {
    for (timeout, deadline) in [(SECOND, Duration::ZERO), (Duration::ZERO, SECOND)] {
        let mut failover = within(1, timeout, deadline, |_, _| Ok("yes"));
        let error = failover.write(()).unwrap_err();
        assert_eq!(error.code(), ErrorCode::TIMED_OUT);
        let reason = "the call waited for other calls, or this host is too busy";
        let message = format!("deadline exceeded before the first request to Test: {reason}");
        assert_eq!(error.to_string(), message);
        assert!(failover.transport().asked.is_empty());
    }
}

#[test]
fn a_call_whose_time_is_over_after_an_answer_says_so() {
    let reply = |_, _| {
        pass(20 * SECOND);
        Ok("yes")
    };
    let mut failover = within(1, 10 * SECOND, 10 * SECOND, reply);
    assert_eq!(failover.read(()).unwrap(), "yes");
    let error = failover.read(()).unwrap_err();
    assert_eq!(error.code(), ErrorCode::TIMED_OUT);
    assert_eq!(
        error.to_string(),
        "deadline exceeded before the next request to Test: earlier requests and waits took the time"
    );
}

#[test]
fn a_tenth_of_the_time_is_left_for_saying_what_is_wrong() {
    let left = |deadline: Duration| within(1, 10_000 * SECOND, deadline, |_, _| Ok("yes")).left();
    for deadline in [10, 100, 1_000].map(Duration::from_secs) {
        let left = left(deadline);
        assert!(left <= deadline * 9 / 10 && left > deadline / 2, "{left:?} of {deadline:?}");
    }
    // As of a deadline that comes later.
    let mut failover = within(1, 10_000 * SECOND, Duration::ZERO, |_, _| Ok("yes"));
    assert_eq!(failover.left(), Duration::ZERO);
    failover.set_deadline(Deadline::after(100 * SECOND));
    assert!(failover.left() <= 90 * SECOND && failover.left() > 50 * SECOND);
}

#[test]
fn the_code_says_whether_a_server_was_asked_and_whether_waiting_helps() {
    let (reached, again) = (ErrorCode::UNREACHED, ErrorCode::TRY_AGAIN);
    for (trouble, unreached, code) in [
        (RequestError::not_done("x"), reached, ErrorCode::UNREACHED),
        (RequestError::not_done("x"), again, ErrorCode::TRY_AGAIN),
        (RequestError::not_done("x").sent(true), reached, ErrorCode::TRY_AGAIN),
        (RequestError::unknown("x"), reached, ErrorCode::TRY_AGAIN),
        (RequestError::rejected("x"), reached, ErrorCode::UNREACHED),
        (RequestError::rejected("x"), again, ErrorCode::BACKEND),
        (RequestError::rejected("x").sent(true), reached, ErrorCode::BACKEND),
    ] {
        let case = format!("{trouble:?} {unreached}");
        let mut first = Some(trouble);
        let mut failover = failover(1, |_, _| {
            pass(20 * SECOND);
            first.take().map_or_else(away, Err)
        });
        failover.service.unreached = unreached;
        assert_eq!(failover.read(()).unwrap_err().code(), code, "{case}");
    }
}

#[test]
fn an_answer_of_earlier_counts_as_asked() {
    let mut failover = failover(1, |_, number| {
        pass(20 * SECOND);
        if number == 0 { Ok("yes") } else { away() }
    });
    assert_eq!(failover.read(()).unwrap(), "yes");
    assert_eq!(failover.read(()).unwrap_err().code(), ErrorCode::TRY_AGAIN);
}
