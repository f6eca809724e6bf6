//! Where the volumes of clusters' claims can be used. A claim stays bound to its volume, so each volume is read once for a
//! claim, and again only where what it said is in doubt; it is not judged here.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures::future::try_join_all;
use k8s_openapi::api::core::v1::PersistentVolume;
use quorate_statemachine::{Serial, Uid};

use super::cache::Key;
use super::facts::{ClaimFacts, Place};
use crate::api::{Error, Kube};

/// What was read, of each cluster by the UIDs of its claims: another claim may be bound to another volume of the same name.
#[derive(Debug, Default)]
pub struct Places(Mutex<HashMap<Key, HashMap<Uid, Place>>>);

impl Places {
    /// Where the volumes of this cluster's claims can be used, by the claims' UIDs. What is known of other claims that it had
    /// is forgotten, and what `is_in_doubt` is read again.
    pub async fn of(
        &self,
        kube: &Kube,
        key: &Key,
        claims: &BTreeMap<Serial, ClaimFacts>,
        is_in_doubt: impl Fn(&Place) -> bool,
    ) -> Result<HashMap<Uid, Place>, Error> {
        let known = self.lock().get(key).cloned().unwrap_or_default();
        let bound = claims.values().filter_map(|claim| Some((claim.uid.clone(), claim.volume_name.as_ref()?)));
        let read = bound.map(async |(uid, volume)| {
            let place = match known.get(&uid).filter(|place| !is_in_doubt(place)) {
                Some(place) => Some(place.clone()),
                None => kube.get_global::<PersistentVolume>(volume).await?.as_ref().map(Place::of),
            };
            Ok::<_, Error>(place.map(|place| (uid, place)))
        });
        let places: HashMap<_, _> = try_join_all(read).await?.into_iter().flatten().collect();
        if places.is_empty() {
            self.forget(key);
        } else if places != known {
            self.lock().insert(key.clone(), places.clone());
        }
        Ok(places)
    }

    /// A cluster is no more.
    pub fn forget(&self, key: &Key) {
        self.lock().remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, HashMap<Uid, Place>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;
    use tokio::sync::watch;

    use super::*;
    use crate::fake_api::FakeApi;
    use crate::lease::Claim;
    use crate::metrics::Metrics;
    use crate::writes::Writes;

    const VOLUME: &str = "/api/v1/persistentvolumes/etcd-a";

    /// The volume of that name, on a node.
    fn on(api: &FakeApi, node: &str) {
        let expression = json!({ "key": "metadata.name", "operator": "In", "values": [node] });
        let terms = json!([{ "matchFields": [expression] }]);
        api.put(VOLUME, json!({ "spec": { "nodeAffinity": { "required": { "nodeSelectorTerms": terms } } } }));
    }

    fn claims(uid: &str) -> BTreeMap<Serial, ClaimFacts> {
        let claim = json!({ "metadata": { "uid": uid }, "spec": { "volumeName": "etcd-a" } });
        [(Serial(0), ClaimFacts::of(&serde_json::from_value(claim).unwrap()).unwrap())].into()
    }

    #[tokio::test]
    async fn another_claim_may_be_bound_to_another_volume_of_the_same_name() {
        let (api, places) = (FakeApi::default(), Places::default());
        let writes = Writes::new(Claim::forever(), watch::channel(false).1, None);
        let kube = Kube::new(api.client(), Arc::new(Metrics::new()), writes);
        let key = Key { namespace: "ns".into(), name: "db".into() };
        let looked = async |uid: &str, in_doubt: &str| {
            let is_in_doubt = |place: &Place| *place == Place::Node(in_doubt.into());
            places.of(&kube, &key, &claims(uid), is_in_doubt).await.unwrap().remove(&Uid::new(uid))
        };
        let of = async |uid: &str| looked(uid, "none").await;
        assert_eq!(of("first").await, None, "it is not there yet");
        on(&api, "a");
        assert_eq!(of("first").await, Some(Place::Node("a".into())));
        api.remove(VOLUME);
        assert_eq!(of("first").await, Some(Place::Node("a".into())), "it is read once");
        on(&api, "b");
        assert_eq!(of("first").await, Some(Place::Node("a".into())));
        assert_eq!(looked("first", "a").await, Some(Place::Node("b".into())), "its node is gone");
        assert_eq!(of("second").await, Some(Place::Node("b".into())));
        assert_eq!(places.lock()[&key].len(), 1);
        assert!(places.of(&kube, &key, &BTreeMap::new(), |_| false).await.unwrap().is_empty());
        assert!(places.lock().is_empty());
    }
}
