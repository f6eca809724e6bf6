//! What the watches have brought, by cluster, as small facts. It can lag: whoever needs the truth reads it from the API
//! server. Nothing here judges.

use std::collections::{BTreeMap, HashMap};
use std::sync::{PoisonError, RwLock};

use kube::ResourceExt;
use kube::runtime::watcher::Event;
use quorate_crds::names::LABEL_CLUSTER;

/// Which cluster: its namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The namespace.
    pub namespace: String,
    /// The name of the EtcdCluster.
    pub name: String,
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl Key {
    /// The cluster whose label an object carries.
    pub fn of_child(child: &impl ResourceExt) -> Option<Self> {
        Some(Self { namespace: child.namespace()?, name: child.labels().get(LABEL_CLUSTER)?.clone() })
    }
}

/// The children of one kind, by cluster and name.
#[derive(Debug)]
pub struct Cache<T> {
    held: RwLock<Held<T>>,
}

#[derive(Debug)]
struct Held<T> {
    now: Children<T>,
    /// What a relist has brought so far; it replaces `now` when the list is whole.
    relist: Children<T>,
}

/// What there is of one kind.
#[derive(Debug)]
struct Children<T> {
    by_cluster: HashMap<Key, BTreeMap<String, T>>,
    /// Of which cluster each is, by its own namespace and name: somebody may change its label, and an event tells only the
    /// label of now.
    clusters: HashMap<(String, String), Key>,
}

impl<T> Default for Cache<T> {
    fn default() -> Self {
        Self { held: RwLock::new(Held { now: Children::default(), relist: Children::default() }) }
    }
}

impl<T> Default for Children<T> {
    fn default() -> Self {
        Self { by_cluster: HashMap::new(), clusters: HashMap::new() }
    }
}

impl<T> Children<T> {
    fn put(&mut self, key: Key, child: &impl ResourceExt, facts: T) {
        self.clusters.insert((key.namespace.clone(), child.name_any()), key.clone());
        self.by_cluster.entry(key).or_default().insert(child.name_any(), facts);
    }

    /// Takes it out, and tells of which cluster it was.
    fn lose(&mut self, child: &impl ResourceExt) -> Option<Key> {
        let name = child.name_any();
        let key = self.clusters.remove(&(child.namespace()?, name.clone()))?;
        let children = self.by_cluster.get_mut(&key)?;
        children.remove(&name);
        if children.is_empty() {
            self.by_cluster.remove(&key);
        }
        Some(key)
    }
}

impl<T: Clone + PartialEq> Cache<T> {
    /// Takes what a watch brought and says which clusters it concerns. `facts` may find an object not worth keeping.
    pub fn take<K: ResourceExt>(&self, event: Event<K>, facts: impl Fn(&K) -> Option<T>) -> Vec<Key> {
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Init => {
                held.relist = Children::default();
                Vec::new()
            }
            Event::InitApply(object) => {
                if let (Some(key), Some(facts)) = (Key::of_child(&object), facts(&object)) {
                    held.relist.put(key, &object, facts);
                }
                Vec::new()
            }
            Event::InitDone => {
                let fresh = std::mem::take(&mut held.relist);
                let stale = std::mem::replace(&mut held.now, fresh);
                changed(&stale, &held.now)
            }
            Event::Apply(object) => {
                let before = held.now.lose(&object);
                let now = Key::of_child(&object).zip(facts(&object)).map(|(key, facts)| {
                    held.now.put(key.clone(), &object, facts);
                    key
                });
                concerned(now, before)
            }
            Event::Delete(object) => {
                let before = held.now.lose(&object);
                concerned(Key::of_child(&object), before)
            }
        }
    }

    /// The children of one cluster, by name.
    pub fn of(&self, key: &Key) -> BTreeMap<String, T> {
        let held = self.held.read().unwrap_or_else(PoisonError::into_inner);
        held.now.by_cluster.get(key).cloned().unwrap_or_default()
    }

    /// Whether one cluster has a child for which `wanted` says yes.
    pub fn any_of(&self, key: &Key, wanted: impl Fn(&T) -> bool) -> bool {
        let held = self.held.read().unwrap_or_else(PoisonError::into_inner);
        held.now.by_cluster.get(key).is_some_and(|children| children.values().any(wanted))
    }

    /// The clusters that have a child for which `wanted` says yes.
    pub fn with(&self, wanted: impl Fn(&T) -> bool) -> Vec<Key> {
        let held = self.held.read().unwrap_or_else(PoisonError::into_inner);
        let some = held.now.by_cluster.iter().filter(|(_, children)| children.values().any(&wanted));
        some.map(|(key, _)| key.clone()).collect()
    }
}

/// The clusters that an object concerns: whose it is now, and whose it was if that was another's.
fn concerned(now: Option<Key>, before: Option<Key>) -> Vec<Key> {
    let moved = before.filter(|before| now.as_ref() != Some(before));
    now.into_iter().chain(moved).collect()
}

fn changed<T: PartialEq>(before: &Children<T>, after: &Children<T>) -> Vec<Key> {
    let (before, after) = (&before.by_cluster, &after.by_cluster);
    let gone = before.keys().filter(|key| !after.contains_key(key));
    let other = after.iter().filter(|(key, children)| before.get(key) != Some(children)).map(|(key, _)| key);
    gone.chain(other).cloned().collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    use super::*;

    fn child(cluster: &str, name: &str, value: &str) -> ConfigMap {
        serde_json::from_value(json!({
            "metadata": { "namespace": "ns", "name": name, "labels": { LABEL_CLUSTER: cluster } },
            "data": { "v": value }
        }))
        .unwrap()
    }

    fn value(object: &ConfigMap) -> Option<String> {
        object.data.as_ref()?.get("v").cloned()
    }

    fn key(cluster: &str) -> Key {
        Key { namespace: "ns".into(), name: cluster.into() }
    }

    #[test]
    fn children_come_and_go_with_their_cluster() {
        let cache = Cache::default();
        assert_eq!(cache.take(Event::Apply(child("a", "a-0", "x")), value), [key("a")]);
        assert_eq!(cache.of(&key("a")), BTreeMap::from([("a-0".to_owned(), "x".to_owned())]));
        assert_eq!(cache.with(|v| v == "x"), [key("a")]);
        assert!(cache.with(|v| v == "y").is_empty());
        assert_eq!(cache.take(Event::Delete(child("a", "a-0", "x")), value), [key("a")]);
        assert!(cache.of(&key("a")).is_empty());
    }

    #[test]
    fn one_that_is_not_worth_keeping_any_more_goes() {
        let cache = Cache::default();
        let worth = |object: &ConfigMap| value(object).filter(|value| value != "nothing");
        assert!(cache.take(Event::Apply(child("a", "a-0", "nothing")), worth).is_empty());
        cache.take(Event::Apply(child("a", "a-0", "x")), worth);
        assert_eq!(cache.take(Event::Apply(child("a", "a-0", "nothing")), worth), [key("a")]);
        assert!(cache.of(&key("a")).is_empty());
    }

    #[test]
    fn a_relist_takes_effect_as_a_whole_and_wakes_only_what_changed() {
        let cache = Cache::default();
        for cluster in ["same", "other", "gone"] {
            cache.take(Event::Apply(child(cluster, &format!("{cluster}-0"), "1")), value);
        }
        cache.take(Event::<ConfigMap>::Init, value);
        cache.take(Event::InitApply(child("same", "same-0", "1")), value);
        cache.take(Event::InitApply(child("other", "other-0", "2")), value);
        assert_eq!(cache.of(&key("gone")).len(), 1, "half a list is no list");
        let mut woken = cache.take(Event::<ConfigMap>::InitDone, value);
        woken.sort();
        assert_eq!(woken, [key("gone"), key("other")]);
        assert!(cache.of(&key("gone")).is_empty());
    }

    #[test]
    fn one_whose_label_is_changed_goes_from_the_one_cluster_to_the_other() {
        let cache = Cache::default();
        cache.take(Event::Apply(child("a", "a-0", "x")), value);
        assert_eq!(cache.take(Event::Apply(child("b", "a-0", "x")), value), [key("b"), key("a")]);
        assert!(cache.of(&key("a")).is_empty());
        assert_eq!(cache.of(&key("b")).len(), 1);
        assert_eq!(cache.take(Event::Delete(child("c", "a-0", "x")), value), [key("c"), key("b")]);
        assert!(cache.of(&key("b")).is_empty());
    }

    #[test]
    fn an_object_without_the_label_is_left_out() {
        let cache = Cache::default();
        assert!(cache.take(Event::Apply(ConfigMap::default()), value).is_empty());
    }
}
