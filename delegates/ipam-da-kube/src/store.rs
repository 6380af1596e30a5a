//! The objects in the API server: one request for each function.

use std::ops::ControlFlow;

use ipam_kit::{Error, ErrorCode, Result};
use ipam_kube::{
    ApiChange, ApiOutcome, Kube, List, RefusalReason, Resource, is_unauthorized, is_unserved,
};
use ipam_servers::Method;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Value, json};

use crate::lease_mark::ReservationMark;
use crate::objects::{
    GROUP, IpPool, POOLS, PoolEntry, RESERVATIONS, Reservation, VERSION, WrittenObject,
};
use crate::patch::{Patch, reservation_spec};
use crate::stamp::OwnerStamp;
use crate::sticky_lease::{STICKY_GROUP, STICKY_KIND, STICKY_LEASES};

/// The objects of a namespace.
#[derive(Debug)]
pub(crate) struct ObjectStore {
    pub(crate) kube: Kube,
    pub(crate) namespace: String,
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

impl<T> Outcome<T> {
    /// Applies a function to the answer of a change that was made.
    pub(crate) fn map<U>(self, map: impl FnOnce(T) -> U) -> Outcome<U> {
        match self {
            Self::Done(answer) => Outcome::Done(map(answer)),
            Self::Lost => Outcome::Lost,
            Self::Missing => Outcome::Missing,
            Self::Unknown => Outcome::Unknown,
        }
    }
}

impl ObjectStore {
    pub(crate) fn new(kube: Kube, namespace: String) -> Self {
        Self { kube, namespace }
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Reads a pool; `None` if it does not exist.
    ///
    /// # Errors
    /// The server does not answer, refuses, or answers something else. So everywhere here.
    pub(crate) fn read_pool(&mut self, name: &str) -> Result<Option<IpPool>> {
        let Self { kube, namespace } = self;
        kube.get(&resource(POOLS, namespace, Some(name))).map_err(explain(POOLS))
    }

    /// Shows each pool of the namespace. If the list is interrupted, a pool is shown again.
    pub(crate) fn list_pools(&mut self, each: &mut dyn FnMut(IpPool)) -> Result<()> {
        let Self { kube, namespace } = self;
        let list = List { page: PAGE_OF_POOLS, ..List::all(resource(POOLS, namespace, None)) };
        let mut each = |pool| {
            each(pool);
            ControlFlow::Continue(())
        };
        kube.list(&list, &mut each).map_err(explain(POOLS))
    }

    /// Asks for a change of a pool that does not exist: the answer shows whether the kind is served,
    /// and whether pools may be changed.
    pub(crate) fn check_ready(&mut self) -> Result<()> {
        let Self { kube, namespace } = self;
        let resource = resource(POOLS, namespace, Some(ABSENT));
        match change::<IgnoredAny>(kube, &ApiChange::patch(resource, "[]"))? {
            Outcome::Done(_) | Outcome::Lost | Outcome::Missing => Ok(()),
            Outcome::Unknown => {
                let message = format!("PATCH {resource}: no answer from the API server");
                // An answer to a read says more.
                self.read_pool(ABSENT)?;
                Err(Error::new(ErrorCode::TRY_AGAIN, message).advise("check the API server"))
            }
        }
    }

    /// Sends each kind of request that a call may need, about an object that cannot exist: the
    /// answers show which rights are missing, and whether the namespace is. `reserves` says whether calls make reservations, and
    /// `is_sticky` whether addresses stay with names.
    pub(crate) fn check_rights(&mut self, reserves: bool, is_sticky: bool) -> Result<()> {
        let namespace = self.namespace.clone();
        let changes = [Method::Post, Method::Patch, Method::Delete];
        let absent = |plural| resource(plural, &namespace, Some(ABSENT));
        let mut errors = self.try_rights(absent(POOLS), "IPPool", &changes[..2]);
        if reserves {
            errors.extend(self.try_rights(absent(RESERVATIONS), RESERVATION, &changes));
        }
        if is_sticky {
            let absent = sticky_resource(&namespace, Some(ABSENT));
            errors.extend(self.try_rights(absent, STICKY_KIND, &changes));
            errors.extend(self.read_pod(&namespace, ABSENT).err());
            errors.extend(self.read_node(ABSENT).err());
        }
        Error::join(errors)
    }

    /// Reads and changes objects of a kind that cannot exist. Returns what was refused.
    fn try_rights(&mut self, absent: Resource<'_>, kind: &str, changes: &[Method]) -> Vec<Error> {
        let kube = &mut self.kube;
        let all = Resource { name: None, ..absent };
        let mut errors = Vec::from_iter(kube.get::<IgnoredAny>(&absent).err());
        let list = List { page: 1, ..List::all(all) };
        errors.extend(kube.list(&list, &mut |_: IgnoredAny| ControlFlow::Break(())).err());
        let unnamed = json!({"apiVersion": format!("{}/{VERSION}", absent.group), "kind": kind});
        let unnamed = unnamed.to_string();
        for method in changes {
            let change = match method {
                Method::Post => ApiChange::post(all, &unnamed),
                Method::Patch => ApiChange::patch(absent, "[]"),
                _ => ApiChange::delete(absent, ""),
            };
            match kube.ask::<IgnoredAny>(&change) {
                Err(error) => errors.push(error),
                Ok(ApiOutcome::Refused(refusal))
                    if *method == Method::Post && refusal.reason == RefusalReason::NotFound =>
                {
                    errors.push(missing_namespace(kube, &change));
                }
                Ok(_) => {}
            }
        }
        errors.into_iter().map(explain(absent.plural)).collect()
    }

    /// Makes a pool with its first entries.
    pub(crate) fn create_pool(&mut self, pool: &Value) -> Result<Outcome<IpPool>> {
        let Self { kube, namespace } = self;
        let body = pool.to_string();
        change(kube, &ApiChange::post(resource(POOLS, namespace, None), &body))
    }

    /// Changes a pool. The answer has the object.
    pub(crate) fn patch_pool(&mut self, name: &str, patch: &Patch) -> Result<Outcome<IpPool>> {
        let Self { kube, namespace } = self;
        let body = patch.to_bytes();
        change(kube, &ApiChange::patch(resource(POOLS, namespace, Some(name)), &body))
    }

    /// Changes a pool. The answer has its metadata alone.
    pub(crate) fn patch_pool_quietly(
        &mut self,
        name: &str,
        patch: &Patch,
    ) -> Result<Outcome<WrittenObject>> {
        let Self { kube, namespace } = self;
        let body = patch.to_bytes();
        let patch = ApiChange::patch(resource(POOLS, namespace, Some(name)), &body);
        change(kube, &ApiChange { metadata_only: true, ..patch })
    }

    /// Reads a reservation; `None` if it does not exist.
    pub(crate) fn read_reservation(&mut self, name: &str) -> Result<Option<Reservation>> {
        let Self { kube, namespace } = self;
        kube.get(&resource(RESERVATIONS, namespace, Some(name))).map_err(explain(RESERVATIONS))
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
        kube.list(&list, &mut each).map_err(explain(RESERVATIONS))
    }

    /// Makes a reservation, which exists once.
    pub(crate) fn create_reservation(
        &mut self,
        name: &str,
        podref: &str,
        stamp: &OwnerStamp,
    ) -> Result<Outcome<WrittenObject>> {
        let metadata = json!({
            "name": name,
            "namespace": self.namespace,
            "labels": stamp.labels(),
            "annotations": stamp.annotations(),
        });
        self.post_reservation(metadata, reservation_spec(podref, stamp))
    }

    /// Makes the reservation of an entry of another program, as that program does.
    pub(crate) fn create_plain_reservation(
        &mut self,
        name: &str,
        entry: &PoolEntry,
    ) -> Result<Outcome<WrittenObject>> {
        let PoolEntry { id, podref, ifname, .. } = entry;
        let metadata = json!({"name": name, "namespace": self.namespace});
        // Some definitions require a podref, and none takes null.
        let podref = podref.as_deref().unwrap_or_default();
        let mut spec = json!({"podref": podref, "containerid": id});
        if let Some(ifname) = ifname {
            spec["ifname"] = ifname.as_str().into();
        }
        self.post_reservation(metadata, spec)
    }

    fn post_reservation(&mut self, metadata: Value, spec: Value) -> Result<Outcome<WrittenObject>> {
        let body = json!({
            "apiVersion": format!("{GROUP}/{VERSION}"),
            "kind": RESERVATION,
            "metadata": metadata,
            "spec": spec,
        });
        let Self { kube, namespace } = self;
        let body = body.to_string();
        let post = ApiChange::post(resource(RESERVATIONS, namespace, None), &body);
        change(kube, &ApiChange { metadata_only: true, ..post })
    }

    /// Changes a reservation.
    pub(crate) fn patch_reservation(
        &mut self,
        name: &str,
        patch: &Patch,
    ) -> Result<Outcome<WrittenObject>> {
        let Self { kube, namespace } = self;
        let body = patch.to_bytes();
        let patch = ApiChange::patch(resource(RESERVATIONS, namespace, Some(name)), &body);
        change(kube, &ApiChange { metadata_only: true, ..patch })
    }

    /// Deletes a reservation that is in a certain state.
    pub(crate) fn delete_reservation(
        &mut self,
        name: &str,
        seen: &ReservationMark,
    ) -> Result<Outcome<IgnoredAny>> {
        let ReservationMark { uid, resource_version } = seen;
        let preconditions = json!({"uid": uid, "resourceVersion": resource_version});
        let body = json!({"preconditions": preconditions}).to_string();
        let Self { kube, namespace } = self;
        change(kube, &ApiChange::delete(resource(RESERVATIONS, namespace, Some(name)), &body))
    }
}

/// Sends a change, and sorts its outcome.
pub(crate) fn change<T: DeserializeOwned>(
    kube: &mut Kube,
    change: &ApiChange<'_>,
) -> Result<Outcome<T>> {
    let refusal = match kube.ask(change).map_err(explain(change.resource.plural))? {
        ApiOutcome::Done(answer) => return Ok(Outcome::Done(answer)),
        ApiOutcome::Unknown => return Ok(Outcome::Unknown),
        ApiOutcome::Refused(refusal) => refusal,
    };
    let ApiChange { method, resource, .. } = change;
    let (code, message, advice) = match refusal.reason {
        RefusalReason::AlreadyExists | RefusalReason::Conflict | RefusalReason::TestFailed => {
            return Ok(Outcome::Lost);
        }
        RefusalReason::NotFound if resource.name.is_some() => return Ok(Outcome::Missing),
        RefusalReason::NotFound => return Err(missing_namespace(kube, change)),
        RefusalReason::TooLarge => (
            ErrorCode::EXHAUSTED,
            "the object has reached the size limit of the API server".to_owned(),
            "an IPPool holds some 11,000 addresses: release leases, or divide the range among several pools",
        ),
        RefusalReason::Invalid => (
            ErrorCode::BACKEND,
            "the API server refuses the object".to_owned(),
            "compare the custom resource definitions in the cluster with those of this release",
        ),
    };
    let error = Error::new(code, format!("{method} {resource}: {message}"));
    Err(error.caused_by(refusal.message).advise(advice))
}

/// The error of a new object for a namespace that does not exist.
fn missing_namespace(kube: &Kube, change: &ApiChange<'_>) -> Error {
    let ApiChange { method, resource, .. } = change;
    let name = resource.namespace.unwrap_or_default();
    let is_of_login = kube.namespace() == Some(name);
    let place = kube.namespace_path().filter(|_| is_of_login).unwrap_or("ipam.kube.namespace");
    let message = format!("{method} {resource}: the namespace {name} does not exist");
    Error::new(ErrorCode::BACKEND, message)
        .advise(format!("create the namespace, or correct {place}"))
}

/// The name of an object that does not exist.
const ABSENT: &str = "ipam-delegated-status";

/// The kind of reservations.
const RESERVATION: &str = "OverlappingRangeIPReservation";

/// How many pools a page of a list has. A pool may have a mebibyte and more.
const PAGE_OF_POOLS: usize = 20;

fn resource<'a>(plural: &'a str, namespace: &'a str, name: Option<&'a str>) -> Resource<'a> {
    Resource { group: GROUP, version: VERSION, plural, namespace: Some(namespace), name }
}

/// The StickyLeases of a namespace, or one of them.
pub(crate) fn sticky_resource<'a>(namespace: &'a str, name: Option<&'a str>) -> Resource<'a> {
    Resource {
        group: STICKY_GROUP,
        version: VERSION,
        plural: STICKY_LEASES,
        namespace: Some(namespace),
        name,
    }
}

/// Releases of whereabouts before 0.5 have no reservations.
const WITHOUT_RESERVATIONS: &str =
    "if all nodes run whereabouts 0.4 or its fork, set ipam.kube.overlapCheck to false";

/// Explains the error of a request for objects of a kind. A rejected login may be one that is just
/// being renewed.
pub(crate) fn explain(plural: &str) -> impl Fn(Error) -> Error {
    move |error| match error {
        error if is_unauthorized(&error) => error.with_code(ErrorCode::TRY_AGAIN),
        error if is_unserved(&error) => {
            let file = if plural == STICKY_LEASES { "sticky.yaml" } else { "crds.yaml" };
            let error = error.advise(format!(
                "the definitions are in delegates/ipam-da-kube/deploy/{file} of this release"
            ));
            let error = error.advise("if the API server is just starting, call again");
            if plural == RESERVATIONS { error.advise(WITHOUT_RESERVATIONS) } else { error }
        }
        error => error,
    }
}
