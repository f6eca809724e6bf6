//! Finds out whether Kubernetes has published the addresses of pods whose launchers wait to be told to start for the first
//! time: only from then on does DNS know them by their names. Decides nothing; what can't be read holds nobody up.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt;
use quorate_crds::EtcdCluster;
use quorate_statemachine::{Serial, Sight, Uid};
use tokio::time::Instant;

use super::pods::PodFacts;
use super::said::Said;
use crate::api::Kube;
use crate::telemetry::chain;

/// The label by which a slice says whose it is.
const LABEL_SERVICE: &str = "kubernetes.io/service-name";
/// For how long an address is waited for. It is published some 10 ms after the pod has it. Two that come at the same moment
/// make the controller fail, as it has not heard of its own last write yet, and try again after a second, and two more after
/// that (`defaultSyncBackOff` in Kubernetes' pkg/controller/endpointslice). Then the launcher is left to wait for its name.
const PATIENCE: Duration = Duration::from_secs(4);
/// After this it is late, and no longer on its way.
const LATE: Duration = Duration::from_millis(40);

/// What is known of the addresses of the pods that wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoints(BTreeMap<Uid, Endpoint>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Endpoint {
    Published,
    AwaitedSince(Instant),
}

/// Looks for the addresses of all pods that wait; not again for one that was found.
pub async fn look(
    kube: &Kube,
    cluster: &EtcdCluster,
    pods: &BTreeMap<Serial, PodFacts>,
    said: &Said,
    earlier: &Endpoints,
) -> Endpoints {
    let waiting = waiting(pods, said, earlier);
    if waiting.iter().all(|pod| earlier.0.get(pod) == Some(&Endpoint::Published)) {
        return Endpoints(waiting.into_iter().map(|pod| (pod, Endpoint::Published)).collect());
    }
    let (namespace, name) = (cluster.namespace().unwrap_or_default(), cluster.name_any());
    let published = match kube.list_cached::<EndpointSlice>(&namespace, &format!("{LABEL_SERVICE}={name}")).await {
        Ok(slices) => published_in(&slices),
        Err(error) => {
            tracing::debug!(cluster = name, error = %chain(&error), "it is not known whether DNS knows the newcomers");
            waiting.clone()
        }
    };
    earlier.after(waiting, &published)
}

/// The pods whose launchers wait and that were never told anything; also those that only did not answer this time, so that they
/// are waited for no longer than they were.
fn waiting(pods: &BTreeMap<Serial, PodFacts>, said: &Said, earlier: &Endpoints) -> BTreeSet<Uid> {
    let waits = |serial: &Serial, pod: &PodFacts| {
        let seen = said.seen.get(serial).filter(|seen| seen.pod == pod.uid);
        let says_so = seen.is_some_and(|seen| matches!(seen.sight, Sight::Waiting(_)));
        pod.ticket.is_none() && (says_so || earlier.0.contains_key(&pod.uid))
    };
    pods.iter().filter(|(serial, pod)| waits(serial, pod)).map(|(_, pod)| pod.uid.clone()).collect()
}

fn published_in(slices: &[EndpointSlice]) -> BTreeSet<Uid> {
    let endpoints = slices.iter().flat_map(|slice| &slice.endpoints).filter(|endpoint| !endpoint.addresses.is_empty());
    endpoints.filter_map(|endpoint| endpoint.target_ref.as_ref()?.uid.as_deref()).map(Uid::new).collect()
}

impl Endpoints {
    fn after(&self, waiting: BTreeSet<Uid>, published: &BTreeSet<Uid>) -> Self {
        let now = Instant::now();
        let endpoint = |pod: Uid| {
            let known = match self.0.get(&pod) {
                _ if published.contains(&pod) => Endpoint::Published,
                Some(known) => *known,
                None => Endpoint::AwaitedSince(now),
            };
            (pod, known)
        };
        Self(waiting.into_iter().map(endpoint).collect())
    }

    /// Takes for silent who would have to ask DNS in vain. Somebody's first answer, that there is no such name, may be
    /// remembered for half a minute, for all others too (`cache` in a Corefile).
    pub fn hold_back(&self, said: &mut Said) {
        for seen in said.seen.values_mut() {
            if let Some(Endpoint::AwaitedSince(since)) = self.0.get(&seen.pod)
                && since.elapsed() < PATIENCE
            {
                seen.sight = Sight::Unknown;
            }
        }
    }

    /// The pods whose addresses are late.
    pub fn late(&self) -> impl Iterator<Item = &Uid> {
        self.0.iter().filter_map(|(pod, endpoint)| match endpoint {
            Endpoint::AwaitedSince(since) if since.elapsed() >= LATE => Some(pod),
            Endpoint::AwaitedSince(_) | Endpoint::Published => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::StatusCode;
    use quorate_statemachine::Millis;
    use serde_json::json;
    use tokio::sync::watch;

    use super::*;
    use crate::cluster::observe::Observed;
    use crate::cluster::observe::pods::TicketFacts;
    use crate::cluster::render::Begin;
    use crate::cluster::report::fixture;
    use crate::fake_api::{FakeApi, Fault};
    use crate::lease::Claim;
    use crate::metrics::Metrics;
    use crate::writes::Writes;

    const WAITING: Sight = Sight::Waiting(None);
    const SLICE: &str = "/apis/discovery.k8s.io/v1/namespaces/ns/endpointslices/db-x1";

    /// The API, and a cluster of whose pods 1 and 2 wait.
    fn newcomers() -> (FakeApi, Observed) {
        (FakeApi::default(), fixture::sighted(&[(Serial(1), WAITING), (Serial(2), WAITING)], true))
    }

    fn publish(api: &FakeApi, observed: &Observed, serials: &[u32]) {
        let endpoint = |serial: &u32| {
            let uid = observed.pods[&Serial(*serial)].uid.as_str();
            json!({ "addresses": ["10.0.0.7"], "targetRef": { "kind": "Pod", "uid": uid } })
        };
        let endpoints: Vec<_> = serials.iter().map(endpoint).collect();
        let metadata = json!({ "name": "db-x1", "labels": { LABEL_SERVICE: "db" } });
        api.put(SLICE, json!({ "metadata": metadata, "addressType": "IPv4", "endpoints": endpoints }));
    }

    /// Looks, and says who is seen to wait and whose address is late.
    async fn looks(api: &FakeApi, observed: &Observed, endpoints: &mut Endpoints) -> (Vec<u32>, usize) {
        let mut said = observed.said.clone();
        let writes = Writes::new(Claim::forever(), watch::channel(false).1, None);
        let kube = Kube::new(api.client(), Arc::new(Metrics::new()), writes);
        *endpoints = look(&kube, &observed.cluster, &observed.pods, &said, endpoints).await;
        endpoints.hold_back(&mut said);
        let waits = said.seen.iter().filter(|(_, seen)| seen.sight == WAITING).map(|(serial, _)| serial.0);
        (waits.collect(), endpoints.late().count())
    }

    #[tokio::test(start_paused = true)]
    async fn a_newcomer_is_seen_to_wait_once_its_address_is_published() {
        let (api, observed) = newcomers();
        let mut endpoints = Endpoints::default();
        publish(&api, &observed, &[0, 2]);
        assert_eq!(looks(&api, &observed, &mut endpoints).await, (vec![2], 0));
        tokio::time::advance(LATE).await;
        assert_eq!(looks(&api, &observed, &mut endpoints).await, (vec![2], 1));
        publish(&api, &observed, &[0, 1, 2]);
        assert_eq!(looks(&api, &observed, &mut endpoints).await, (vec![1, 2], 0));
        api.disturb("endpointslices", Fault::Lag { there: LATE, back: LATE });
        let begun = Instant::now();
        assert_eq!(looks(&api, &observed, &mut endpoints).await, (vec![1, 2], 0));
        assert_eq!(begun.elapsed(), Duration::ZERO, "what was found is not looked for again");
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_never_comes_is_not_waited_for_any_longer() {
        let (api, observed) = newcomers();
        let mut endpoints = Endpoints::default();
        assert_eq!(looks(&api, &observed, &mut endpoints).await.0, Vec::<u32>::new());
        tokio::time::advance(PATIENCE.mul_f64(0.9)).await;
        assert_eq!(looks(&api, &observed, &mut endpoints).await.0, Vec::<u32>::new());
        tokio::time::advance(PATIENCE.mul_f64(0.1)).await;
        assert_eq!(looks(&api, &observed, &mut endpoints).await.0, [1, 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_silent_for_once_is_waited_for_no_longer_than_before() {
        let (api, mut observed) = newcomers();
        let mut endpoints = Endpoints::default();
        looks(&api, &observed, &mut endpoints).await;
        tokio::time::advance(PATIENCE.mul_f64(0.5)).await;
        let waits = observed.said.seen.clone();
        observed.said.seen.values_mut().for_each(|seen| seen.sight = Sight::Unknown);
        assert_eq!(looks(&api, &observed, &mut endpoints).await, (vec![], 2));
        observed.said.seen = waits;
        tokio::time::advance(PATIENCE.mul_f64(0.5)).await;
        assert_eq!(looks(&api, &observed, &mut endpoints).await.0, [1, 2]);
    }

    #[tokio::test]
    async fn who_may_not_look_holds_nobody_up() {
        let (api, observed) = newcomers();
        api.disturb("endpointslices", Fault::Refuse(StatusCode::FORBIDDEN));
        assert_eq!(looks(&api, &observed, &mut Endpoints::default()).await, (vec![1, 2], 0));
    }

    #[tokio::test]
    async fn who_was_told_something_once_is_not_held_back() {
        let (api, mut observed) = newcomers();
        let pod = observed.pods.get_mut(&Serial(1)).unwrap();
        let (volume, since) = (pod.volume.clone(), Millis(0));
        pod.ticket = Some(TicketFacts { begin: Begin::Resume, version: None, volume, mark: None, since });
        assert_eq!(looks(&api, &observed, &mut Endpoints::default()).await, (vec![1], 0));
    }
}
