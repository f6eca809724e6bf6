//! The operator's own definitions in Kubernetes: brought up to date at the start where that is allowed, else checked. It
//! never takes anything out of a cluster.

use std::collections::BTreeSet;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams};
use kube::runtime::wait::{Condition as _, conditions};
use kube::{Api, Client, ResourceExt};
use quorate_crds::manifest::{self, QUORATE_VERSION};
use quorate_crds::names::{ANNOTATION_QUORATE, FIELD_MANAGER};
use semver::Version;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::telemetry::chain;

/// How long one call may take; at the start there is nothing to hold up.
const DEADLINE: Duration = Duration::from_secs(10);
/// How long a definition may take until it is served.
const ESTABLISH_DEADLINE: Duration = Duration::from_secs(30);
/// How often it is asked whether it is.
const ESTABLISH_INTERVAL: Duration = Duration::from_millis(200);
/// The pauses between two tries, the first and the longest: as those of a watch that fails.
const AGAIN_FIRST: Duration = Duration::from_millis(200);
const AGAIN_LONGEST: Duration = Duration::from_secs(5);

/// Why the operator can't start on this definition.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No answer in time.
    #[error("failed to {0} a definition: no answer in time")]
    Deadline(&'static str),
    /// The API server's answer.
    #[error("failed to {0} a definition")]
    Kube(&'static str, #[source] Box<kube::Error>),
    /// It is not there, and the operator may not make it.
    #[error("failed to find the definition {0}, and it may not be created: install deploy/base/crds")]
    Missing(String),
    /// It is too old, and the operator may not change it.
    #[error(
        "failed to use the definition {name}: it lacks {lacking}, and it may not be changed: install deploy/base/crds"
    )]
    Outdated {
        /// Its name.
        name: String,
        /// The first field that it lacks.
        lacking: String,
    },
    /// It is of a later Quorate, which has no such field any more: what this operator wrote there would be dropped.
    #[error(
        "failed to use the definition {name}: it is of Quorate {later} and lacks {field}: run that version, or install \
         deploy/base/crds of this one"
    )]
    TooNew {
        /// Its name.
        name: String,
        /// The version.
        later: Version,
        /// The first field that it lacks.
        field: String,
    },
    /// It could not be compared.
    #[error("failed to compare a definition")]
    Compare(#[from] serde_json::Error),
    /// It was not served in time.
    #[error("failed to see the definition {0} served")]
    NotServed(String),
}

impl Error {
    /// Whether it may pass by itself: an API server that starts does not answer, and then refuses for a moment whomever it
    /// does not know yet.
    fn may_pass(&self) -> bool {
        match self {
            Self::Deadline(_) | Self::Kube(..) | Self::NotServed(_) => true,
            Self::Missing(_) | Self::Outdated { .. } | Self::TooNew { .. } | Self::Compare(_) => false,
        }
    }
}

/// Makes sure that EtcdClusters and EtcdBackups are served as this operator knows them, and waits for what may pass by
/// itself. To end instead would run into the kubelet's back-off: after five times there would be no operator for minutes
/// after the API server is back. Until then `hinder` holds why nothing is done.
pub async fn ensure_in_the_end(client: &Client, hinder: &watch::Sender<Option<String>>) -> Result<(), Error> {
    let mut pauses = ExponentialBuilder::default()
        .with_min_delay(AGAIN_FIRST)
        .with_max_delay(AGAIN_LONGEST)
        .without_max_times()
        .with_jitter()
        .build();
    loop {
        let error = match ensure(client).await {
            Err(error) if error.may_pass() => error,
            ended => {
                hinder.send_replace(None);
                return ended;
            }
        };
        let pause = pauses.next().unwrap_or(AGAIN_LONGEST);
        let words = chain(&error);
        tracing::warn!(error = words, ?pause, "waits for Kubernetes");
        hinder.send_replace(Some(words));
        sleep(pause).await;
    }
}

/// Makes sure of that, or says why it can't now.
async fn ensure(client: &Client) -> Result<(), Error> {
    for wished in [manifest::cluster(), manifest::backup()] {
        ensure_one(client, wished).await?;
    }
    Ok(())
}

async fn ensure_one(client: &Client, wished: CustomResourceDefinition) -> Result<(), Error> {
    let name = wished.name_any();
    let api = Api::<CustomResourceDefinition>::all(client.clone());
    let live = within("read", api.get_opt(&name)).await?;
    let shown = live.as_ref().map(serde_json::to_value).transpose()?.unwrap_or_default();
    let lacking = match &live {
        Some(_) => lacking(&shown, &serde_json::to_value(&wished)?),
        None => BTreeSet::from([String::new()]),
    };
    let Some(first) = lacking.first().cloned() else { return Ok(()) };
    if let Some(later) = live.as_ref().and_then(is_of_a_later_version) {
        if let Some(field) = lacking.into_iter().find(|path| is_gone(path, &shown)) {
            return Err(Error::TooNew { name, later, field });
        }
        tracing::info!(name, %later, "the definition is of a later Quorate than this one, and stays");
        return Ok(());
    }
    let params = PatchParams::apply(FIELD_MANAGER).force();
    match within("apply", api.patch(&name, &params, &Patch::Apply(&wished))).await {
        Ok(_) => tracing::info!(name, "applied the definition"),
        Err(Error::Kube(_, error)) if forbidden(&error) => {
            return Err(match live {
                Some(_) => Error::Outdated { name, lacking: first },
                None => Error::Missing(name),
            });
        }
        Err(error) => return Err(error),
    }
    timeout(ESTABLISH_DEADLINE, until_served(&api, &name)).await.unwrap_or(Err(Error::NotServed(name)))
}

/// The version of Quorate that a definition is of, if it is later than ours: what it has of its own, a newer operator needs.
fn is_of_a_later_version(live: &CustomResourceDefinition) -> Option<Version> {
    let theirs = Version::parse(live.annotations().get(ANNOTATION_QUORATE)?).ok()?;
    let ours = Version::parse(QUORATE_VERSION).ok()?;
    (theirs > ours).then_some(theirs)
}

/// Whether what is lacking is a whole field, or a version of the API, and not what is asked of one.
fn is_gone(path: &str, live: &Value) -> bool {
    let pointer = format!("/{}", path.replace(['.', '['], "/").replace(']', ""));
    let is_field = path.rsplit('.').nth(1) == Some("properties");
    path == "spec.versions" || (is_field && live.pointer(&pointer).is_none())
}

/// Asks again and again: a watch would need two rights more.
async fn until_served(api: &Api<CustomResourceDefinition>, name: &str) -> Result<(), Error> {
    let served = conditions::is_crd_established();
    while !served.matches_object(within("read", api.get_opt(name)).await?.as_ref()) {
        sleep(ESTABLISH_INTERVAL).await;
    }
    Ok(())
}

async fn within<T>(verb: &'static str, call: impl Future<Output = kube::Result<T>>) -> Result<T, Error> {
    let answer = timeout(DEADLINE, call).await.map_err(|_| Error::Deadline(verb))?;
    answer.map_err(|error| Error::Kube(verb, Box::new(error)))
}

fn forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_forbidden())
}

/// The paths of what is wished for and is not so in the live definition. Descriptions are for people and do not count;
/// fields that the API server filled in, or somebody added, do no harm.
fn lacking(live: &Value, wished: &Value) -> BTreeSet<String> {
    let mut lacking = BTreeSet::new();
    compare(live.get("spec").unwrap_or(&Value::Null), wished.get("spec").unwrap_or(&Value::Null), "spec", &mut lacking);
    lacking
}

fn compare(live: &Value, wished: &Value, path: &str, lacking: &mut BTreeSet<String>) {
    match (live, wished) {
        (Value::Object(live), Value::Object(wished)) => {
            for (key, wished) in wished.iter().filter(|(key, _)| *key != "description") {
                compare(live.get(key).unwrap_or(&Value::Null), wished, &format!("{path}.{key}"), lacking);
            }
        }
        (Value::Array(live), Value::Array(wished)) if live.len() == wished.len() => {
            for (at, (live, wished)) in live.iter().zip(wished).enumerate() {
                compare(live, wished, &format!("{path}[{at}]"), lacking);
            }
        }
        (Value::Number(live), Value::Number(wished)) if live.as_f64() == wished.as_f64() => (),
        // What is wished to be absent, or is empty, may be left out by the API server.
        (Value::Null, wished) if is_nothing(wished) => (),
        (live, wished) if live == wished => (),
        (_, _) => {
            lacking.insert(path.to_owned());
        }
    }
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(true) | Value::Number(_) | Value::String(_) => false,
    }
}

#[cfg(test)]
mod ensure_tests;
#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Value {
        serde_json::to_value(manifest::cluster()).unwrap()
    }

    #[test]
    fn a_definition_lacks_nothing_of_itself_nor_of_an_older_one() {
        assert!(lacking(&own(), &own()).is_empty());
        let mut newer = own();
        newer["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["more"] = Value::Bool(true);
        assert!(lacking(&newer, &own()).is_empty());
    }

    #[test]
    fn a_field_that_is_missing_is_named() {
        let mut older = own();
        let spec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
        older.pointer_mut(spec).unwrap().as_object_mut().unwrap().remove("paused").unwrap();
        let first = lacking(&older, &own()).into_iter().next().unwrap();
        assert!(first.ends_with("spec.properties.paused"), "{first}");
    }
}
