//! The objects in the API server: one request for each function.

use std::ops::ControlFlow;

use ipam_kit::{Error, ErrorCode, Result};
use ipam_kube::{ApiChange, ApiOutcome, Kube, List, RefusalReason, Resource};
use ipam_servers::Method;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::json;

use crate::lease_mark::ReservationMark;
use crate::objects::{GROUP, IpPool, ObjectHead, POOLS, RESERVATIONS, Reservation, VERSION};
use crate::patch::{Patch, reservation_spec};
use crate::stamp::Stamp;

/// The objects of a namespace.
#[derive(Debug)]
pub(crate) struct ObjectStore {
    kube: Kube,
    namespace: String,
}

/// The outcome of a change that others may have prevented.
#[derive(Debug)]
pub(crate) enum Outcome<T> {
    /// It was made; with what the server answered.
    Done(T),
    /// It was not made: the object is in another state.
    Lost,
    /// It was not made: the object does not exist.
    Missing,
    /// It may have been made, or may still be.
    Unknown,
}

impl ObjectStore {
    pub(crate) fn new(kube: Kube, namespace: String) -> Self {
        Self { kube, namespace }
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Continues in another namespace.
    pub(crate) fn enter(&mut self, namespace: &str) {
        namespace.clone_into(&mut self.namespace);
    }

    /// Reads a pool; `None` if it does not exist.
    ///
    /// # Errors
    /// The server does not answer, refuses, or answers something else. So everywhere here.
    pub(crate) fn read_pool(&mut self, name: &str) -> Result<Option<IpPool>> {
        let Self { kube, namespace } = self;
        kube.get(&resource(POOLS, namespace, Some(name))).map_err(explain)
    }

    /// Shows each pool of the namespace. If the list is interrupted, a pool is shown again.
    pub(crate) fn list_pools(&mut self, each: &mut dyn FnMut(IpPool)) -> Result<()> {
        let Self { kube, namespace } = self;
        let list = List { page: PAGE_OF_POOLS, ..List::all(resource(POOLS, namespace, None)) };
        let mut each = |pool| {
            each(pool);
            ControlFlow::Continue(())
        };
        kube.list(&list, &mut each).map_err(explain)
    }

    /// Asks for a change of a pool that does not exist: the answer shows whether the kind and the
    /// namespace are served, and whether pools may be changed.
    pub(crate) fn check_ready(&mut self) -> Result<()> {
        let outcome: Outcome<IgnoredAny> =
            self.ask(Method::Patch, POOLS, Some("ipam-delegated-status"), b"[]")?;
        match outcome {
            Outcome::Unknown => {
                let message = "the API server did not answer a change of an IPPool";
                Err(Error::new(ErrorCode::TRY_AGAIN, message).advise("check the API server"))
            }
            Outcome::Done(_) | Outcome::Lost | Outcome::Missing => Ok(()),
        }
    }

    /// Makes a pool with its first entries.
    pub(crate) fn create_pool(&mut self, pool: &serde_json::Value) -> Result<Outcome<IpPool>> {
        let body = pool.to_string();
        self.ask(Method::Post, POOLS, None, body.as_bytes())
    }

    /// Changes a pool. The answer has the object.
    pub(crate) fn patch_pool(&mut self, name: &str, patch: &Patch) -> Result<Outcome<IpPool>> {
        self.ask(Method::Patch, POOLS, Some(name), &patch.to_bytes())
    }

    /// Changes a pool. The answer has its metadata alone.
    pub(crate) fn patch_pool_quietly(
        &mut self,
        name: &str,
        patch: &Patch,
    ) -> Result<Outcome<ObjectHead>> {
        self.ask(Method::Patch, POOLS, Some(name), &patch.to_bytes())
    }

    /// Reads a reservation; `None` if it does not exist.
    pub(crate) fn read_reservation(&mut self, name: &str) -> Result<Option<Reservation>> {
        let Self { kube, namespace } = self;
        kube.get(&resource(RESERVATIONS, namespace, Some(name))).map_err(explain)
    }

    /// Shows each reservation with these labels.
    pub(crate) fn list_reservations(
        &mut self,
        labels: &str,
        each: &mut dyn FnMut(Reservation),
    ) -> Result<()> {
        let Self { kube, namespace } = self;
        let list = List { labels, page: 500, ..List::all(resource(RESERVATIONS, namespace, None)) };
        let mut each = |reservation| {
            each(reservation);
            ControlFlow::Continue(())
        };
        kube.list(&list, &mut each).map_err(explain)
    }

    /// Makes a reservation, which exists once.
    pub(crate) fn create_reservation(
        &mut self,
        name: &str,
        podref: &str,
        stamp: &Stamp,
    ) -> Result<Outcome<ObjectHead>> {
        let body = json!({
            "apiVersion": format!("{GROUP}/{VERSION}"),
            "kind": "OverlappingRangeIPReservation",
            "metadata": {
                "name": name,
                "namespace": self.namespace,
                "labels": stamp.labels(),
                "annotations": stamp.annotations(),
            },
            "spec": reservation_spec(podref, stamp),
        });
        self.ask(Method::Post, RESERVATIONS, None, body.to_string().as_bytes())
    }

    /// Changes a reservation.
    pub(crate) fn patch_reservation(
        &mut self,
        name: &str,
        patch: &Patch,
    ) -> Result<Outcome<ObjectHead>> {
        self.ask(Method::Patch, RESERVATIONS, Some(name), &patch.to_bytes())
    }

    /// Deletes a reservation that is in a certain state.
    pub(crate) fn delete_reservation(
        &mut self,
        name: &str,
        seen: &ReservationMark,
    ) -> Result<Outcome<IgnoredAny>> {
        let options = json!({
            "preconditions": {"uid": seen.uid, "resourceVersion": seen.resource_version},
        });
        self.ask(Method::Delete, RESERVATIONS, Some(name), options.to_string().as_bytes())
    }

    fn ask<T: DeserializeOwned>(
        &mut self,
        method: Method,
        plural: &str,
        name: Option<&str>,
        body: &[u8],
    ) -> Result<Outcome<T>> {
        let Self { kube, namespace } = self;
        let resource = resource(plural, namespace, name);
        let change = ApiChange { method, resource, body };
        match kube.ask(&change).map_err(explain)? {
            ApiOutcome::Done(answer) => Ok(Outcome::Done(answer)),
            ApiOutcome::Unknown => Ok(Outcome::Unknown),
            ApiOutcome::Refused(refusal) => match refusal.reason {
                RefusalReason::AlreadyExists
                | RefusalReason::Conflict
                | RefusalReason::TestFailed => Ok(Outcome::Lost),
                RefusalReason::NotFound if name.is_some() => Ok(Outcome::Missing),
                RefusalReason::NotFound => {
                    let message = format!("{resource}: the namespace {namespace} does not exist");
                    let advice = "correct ipam.kube.namespace, or create the namespace";
                    Err(Error::new(ErrorCode::BACKEND, message)
                        .caused_by(refusal.message)
                        .advise(advice))
                }
                RefusalReason::Invalid => {
                    let message = format!("{method} {resource}: the API server refuses the object");
                    Err(Error::new(ErrorCode::BACKEND, message)
                        .caused_by(refusal.message)
                        .advise("check the custom resource definitions of whereabouts"))
                }
            },
        }
    }
}

/// How many pools a page of a list has. A pool may have a mebibyte and more.
const PAGE_OF_POOLS: usize = 20;

fn resource<'a>(plural: &'a str, namespace: &'a str, name: Option<&'a str>) -> Resource<'a> {
    Resource { group: GROUP, version: VERSION, plural, namespace: Some(namespace), name }
}

fn explain(error: Error) -> Error {
    error
}
