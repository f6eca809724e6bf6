//! What every cluster has besides members: two Services, a disruption budget and what proves its backup, applied
//! server-side, and only where they differ from what the watches show of our own. What is somebody else's is left alone.

use k8s_openapi::api::batch::v1::CronJob;
use kube::ResourceExt;
use kube::api::Preconditions;
use quorate_crds::names;
use quorate_statemachine::Plan;
use serde_json::Value;

use super::claims::Ungrown;
use super::{Acting, Stop};
use crate::api::{Error, Namespaced};
use crate::cluster::observe::verify;
use crate::cluster::render;
use crate::ownership::Holder;

impl Acting<'_> {
    /// Applies what differs. The budget is in force before any step is done. Returns what Kubernetes refused of what no step
    /// needs, or failed at: a port that is taken, or a webhook that is away, must not keep members from being healed.
    pub(super) async fn furnish(&self, plan: &Plan, ungrown: &mut Ungrown) -> Result<Option<Stop>, Stop> {
        let live = &self.observed.furniture;
        let name = self.cluster.name;
        let headless = due(render::headless_service(&self.cluster), live.services.get(name));
        let client = due(render::client_service(&self.cluster), live.services.get(&names::client_service(name)));
        let budget = plan.budget.map(|min_available| render::budget(&self.cluster, min_available));
        let budget = budget.and_then(|budget| due(budget, live.budgets.get(name)));
        let (headless, client, budget) = tokio::join!(self.put(headless), self.put(client), self.put(budget));
        headless?;
        budget?;
        let verification = self.furnish_verification().await.err().map(Stop::from);
        let labelled = self.label_claims_again().await.err().map(Stop::from);
        let taken_over = self.take_over_claims().await.err().map(Stop::from);
        let larger = self.grow_claims(ungrown).await;
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
    async fn furnish_verification(&self) -> Result<(), Error> {
        let name = names::verification(self.cluster.name);
        let live = self.observed.furniture.cron_jobs.get(&name);
        if let Some(job) = render::verification(&self.cluster, &self.actor.agent.image) {
            return match due(job, live) {
                Some(job) => self.schedule(&job, live.is_some()).await,
                None => Ok(()),
            };
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

/// An object if it has to be applied: with the UID of the one of ours that the watch shows, if it shows one. It is marked with the
/// hash of all that is asked for in it, as a field that is not asked for any more is not missed by a comparison with the live
/// object, whoever applied that.
fn due<K: Namespaced>(mut object: K, live: Option<&Value>) -> Option<K> {
    let hash = render::write_hash(render::hash_of(&object));
    object.annotations_mut().insert(names::ANNOTATION_APPLIED.to_owned(), hash);
    // The keys of all maps in these objects are strings, so this does not fail; a null would be applied each time.
    let wished = serde_json::to_value(&object).unwrap_or_default();
    object.meta_mut().uid = live.and_then(|live| live["metadata"]["uid"].as_str()).map(str::to_owned);
    (!live.is_some_and(|live| covers(live, &wished))).then_some(object)
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
    use k8s_openapi::api::core::v1::Service;
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
    fn an_object_is_applied_when_it_differs_and_when_less_is_asked_for_than_before() {
        let service = |annotations: &[&str]| {
            let annotations: serde_json::Map<_, _> =
                annotations.iter().map(|name| ((*name).to_owned(), json!("1"))).collect();
            serde_json::from_value::<Service>(json!({ "metadata": { "name": "x", "annotations": annotations } }))
                .unwrap()
        };
        let applied = |service: Service| serde_json::to_value(due(service, None).unwrap()).unwrap();
        let (rich, poor) = (applied(service(&["a", "b"])), applied(service(&["a"])));
        assert!(due(service(&["a", "b"]), Some(&rich)).is_none());
        assert!(due(service(&["a", "b"]), Some(&poor)).is_some());
        // Whoever applied what there is: that may have been another process.
        assert!(due(service(&["a"]), Some(&rich)).is_some(), "an annotation has to go");
        let mut with_anothers = poor.clone();
        with_anothers["metadata"]["annotations"]["b"] = json!("1");
        assert!(due(service(&["a"]), Some(&with_anothers)).is_none(), "somebody else's annotation stays");
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
