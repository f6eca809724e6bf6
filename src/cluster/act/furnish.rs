//! What every cluster has besides members: two Services, a disruption budget and what proves its backup, applied
//! server-side, and only where they differ from what the watches show of our own. What is somebody else's is left alone.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use k8s_openapi::api::batch::v1::CronJob;
use kube::api::Preconditions;
use quorate_crds::names;
use quorate_statemachine::Plan;
use serde::Serialize;
use serde_json::Value;

use super::claims::Ungrown;
use super::{Acting, Stop};
use crate::api::{Error, Namespaced};
use crate::cluster::observe::verify;
use crate::cluster::render;
use crate::ownership::Holder;

/// What this process applied last for one cluster, and what of it was refused.
#[derive(Debug, Default)]
pub struct Furnished {
    /// By kind and name the hash of each object. A field that the spec no longer asks for is not missed by a comparison with
    /// the live object, but by this.
    applied: HashMap<String, u64>,
    ungrown: Ungrown,
}

impl Acting<'_> {
    /// Applies what differs. The budget is in force before any step is done. Returns what Kubernetes refused of what no step
    /// needs, or failed at: a port that is taken, or a webhook that is away, must not keep members from being healed.
    pub(super) async fn furnish(&self, plan: &Plan, furnished: &mut Furnished) -> Result<Option<Stop>, Stop> {
        let live = &self.observed.furniture;
        let name = self.cluster.name;
        let headless = render::headless_service(&self.cluster);
        let headless = furnished.wanted("headless", headless, live.services.get(name));
        let client = render::client_service(&self.cluster);
        let client = furnished.wanted("client", client, live.services.get(&names::client_service(name)));
        let budget = plan.budget.map(|min_available| render::budget(&self.cluster, min_available));
        let budget = budget.and_then(|budget| furnished.wanted("budget", budget, live.budgets.get(name)));
        let (headless, client, budget) = tokio::join!(self.put(headless), self.put(client), self.put(budget));
        // All of them first: the one that ends the round must not have another taken for applied.
        for (name, put) in [("headless", &headless), ("client", &client), ("budget", &budget)] {
            if put.is_err() {
                furnished.forget(name);
            }
        }
        headless?;
        budget?;
        let verification = self.furnish_verification(furnished).await.err().map(Stop::from);
        let labelled = self.label_claims_again().await.err().map(Stop::from);
        let taken_over = self.take_over_claims().await.err().map(Stop::from);
        let larger = self.grow_claims(&mut furnished.ungrown).await;
        Ok(client.err().or(verification).or(labelled).or(taken_over).or(larger))
    }

    /// Applies an object that is due. Where no watch shows one of ours in its place, what has its name is looked at first.
    async fn put<K: Namespaced>(&self, due: Option<K>) -> Result<(), Stop> {
        let Some(mut object) = due else { return Ok(()) };
        if object.meta().uid.is_none() {
            object.meta_mut().uid = self.own_unseen(&object).await?;
        }
        tracing::info!(cluster = %self.cluster.name, kind = %K::kind(&()), "applies");
        let (kube, namespace) = (&self.actor.kube, self.cluster.namespace);
        if object.meta().uid.is_some() {
            kube.apply(namespace, &object).await?;
        } else {
            kube.apply_anew(namespace, &object).await?;
        }
        Ok(())
    }

    /// What proves the continuous backup comes and goes with the wish for it.
    async fn furnish_verification(&self, furnished: &mut Furnished) -> Result<(), Error> {
        let name = names::verification(self.cluster.name);
        let live = self.observed.furniture.cron_jobs.get(&name);
        if let Some(job) = render::verification(&self.cluster, &self.actor.agent.image) {
            if furnished.due("verification", &job, live) {
                self.schedule(&job, live.is_some()).await.inspect_err(|_| furnished.forget("verification"))?;
            }
            return Ok(());
        }
        let Some(live) = live else { return Ok(()) };
        let uid = live["metadata"]["uid"].as_str().map(str::to_owned);
        let still = Preconditions { uid, resource_version: None };
        match self.actor.kube.delete::<CronJob>(self.cluster.namespace, &name, still).await {
            Err(error) if !error.is_not_found() => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Applies the CronJob, if it is known as our own or its name is free. That it is somebody else's is told where what it
    /// proved is told: see [`verify`].
    async fn schedule(&self, job: &CronJob, is_ours: bool) -> Result<(), Error> {
        if is_ours || self.may_schedule().await? {
            tracing::info!(cluster = %self.cluster.name, kind = "CronJob", "applies");
            self.actor.kube.apply(self.cluster.namespace, job).await?;
        }
        Ok(())
    }

    /// Whether the CronJob's name is free, or our own: what somebody else made is never taken over.
    async fn may_schedule(&self) -> Result<bool, Error> {
        let holder = verify::schedule_holder(&self.actor.kube, &self.observed.cluster).await?;
        Ok(match holder {
            None | Some(Holder::Us) => true,
            Some(Holder::Nobody | Holder::Stranger) => false,
        })
    }
}

impl Furnished {
    /// An object if it has to be applied: with the UID of the one of ours that the watch shows, if it shows one.
    fn wanted<K: Namespaced>(&mut self, name: &str, mut object: K, live: Option<&Value>) -> Option<K> {
        let due = self.due(name, &object, live);
        object.meta_mut().uid = live.and_then(|live| live["metadata"]["uid"].as_str()).map(str::to_owned);
        due.then_some(object)
    }

    /// Whether an object has to be applied: it is not there, lacks something, or asks for less than we did before.
    fn due<K: Serialize>(&mut self, name: &str, object: &K, live: Option<&Value>) -> bool {
        // The keys of all maps in these objects are strings, so this does not fail; a null would be applied each time.
        let wished = serde_json::to_value(object).unwrap_or_default();
        let mut hasher = DefaultHasher::new();
        wished.to_string().hash(&mut hasher);
        let hash = hasher.finish();
        let before = self.applied.insert(name.to_owned(), hash);
        !live.is_some_and(|live| covers(live, &wished)) || before.is_some_and(|before| before != hash)
    }

    /// What was not applied after all is due again.
    fn forget(&mut self, name: &str) {
        self.applied.insert(name.to_owned(), 0);
    }
}

/// Whether everything that is wished for is there. Defaults that the API server filled in may be there too.
fn covers(live: &Value, wished: &Value) -> bool {
    match (live, wished) {
        (Value::Object(live), Value::Object(wished)) => wished.iter().all(|(key, wished)| {
            // Others may own it as well, and applying it would not change that.
            let covers = if key == "ownerReferences" { includes } else { covers };
            live.get(key).is_some_and(|live| covers(live, wished))
        }),
        (Value::Array(live), Value::Array(wished)) => {
            live.len() == wished.len() && live.iter().zip(wished).all(|(live, wished)| covers(live, wished))
        }
        (live, wished) => live == wished,
    }
}

/// Whether everything that is wished for is among what is there.
fn includes(live: &Value, wished: &Value) -> bool {
    let (Some(live), Some(wished)) = (live.as_array(), wished.as_array()) else { return false };
    wished.iter().all(|wished| live.iter().any(|live| covers(live, wished)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn defaults_of_the_api_server_are_no_difference() {
        let live = json!({ "spec": { "ports": [{ "port": 1, "nodePort": 30000 }], "type": "ClusterIP" } });
        assert!(covers(&live, &json!({ "spec": { "ports": [{ "port": 1 }] } })));
        for wished in [
            json!({ "spec": { "ports": [{ "port": 2 }] } }),
            json!({ "spec": { "ports": [] } }),
            json!({ "spec": { "type": "NodePort" } }),
            json!({ "metadata": {} }),
        ] {
            assert!(!covers(&live, &wished), "{wished}");
        }
    }

    #[test]
    fn an_object_is_applied_when_it_differs_and_when_we_ask_for_less() {
        let mut furnished = Furnished::default();
        let rich = json!({ "annotations": { "a": "1", "b": "2" } });
        let poor = json!({ "annotations": { "a": "1" } });
        assert!(furnished.due("x", &rich, None));
        assert!(!furnished.due("x", &rich, Some(&rich)));
        assert!(furnished.due("x", &poor, Some(&rich)), "an annotation has to go");
        assert!(!furnished.due("x", &poor, Some(&poor)));
        assert!(!Furnished::default().due("x", &poor, Some(&rich)), "somebody else's annotation stays");
        furnished.forget("x");
        assert!(furnished.due("x", &poor, Some(&poor)));
    }

    #[test]
    fn what_others_own_as_well_is_not_applied_in_every_round() {
        let owned = |owners: &[&str]| {
            let owners: Vec<_> = owners.iter().map(|uid| json!({ "uid": uid, "controller": *uid == "us" })).collect();
            json!({ "metadata": { "ownerReferences": owners } })
        };
        assert!(covers(&owned(&["other", "us"]), &owned(&["us"])));
        assert!(!covers(&owned(&["other"]), &owned(&["us"])));
        assert!(!covers(&json!({ "ports": [{ "port": 1 }, { "port": 2 }] }), &json!({ "ports": [{ "port": 2 }] })));
    }
}
