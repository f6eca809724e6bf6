//! Who has no network now, by who took it. Cuts nothing itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use super::book::Place;

/// What has no network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cut {
    /// A pod, by its address.
    Pod(String),
    /// A node and all pods on it, by its name.
    Node(String),
}

impl Cut {
    fn hits(&self, place: &Place) -> bool {
        match self {
            Self::Pod(address) => *address == place.door.address,
            Self::Node(name) => *name == place.node,
        }
    }
}

/// All that has no network; two cuts of the same count as two.
#[derive(Clone, Debug, Default)]
pub struct Cuts(Arc<Mutex<Vec<Cut>>>);

impl Cuts {
    /// Something has no network from now on.
    pub fn begin(&self, cut: Cut) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(cut);
    }

    /// One such cut was taken back.
    pub fn end(&self, cut: &Cut) {
        let mut cuts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = cuts.iter().position(|it| it == cut) {
            cuts.swap_remove(index);
        }
    }

    /// The members at these places that have none.
    pub fn hit(&self, places: &BTreeMap<String, Place>) -> BTreeSet<String> {
        let cuts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let hit = places.iter().filter(|(_, place)| cuts.iter().any(|cut| cut.hits(place)));
        hit.map(|(name, _)| name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scene::Door;

    #[test]
    fn whoever_is_cut_off_by_pod_or_node_is_until_all_its_cuts_are_taken_back() {
        let place = |number: u8| {
            let door = Door { address: format!("10.0.0.{number}"), host: String::new(), keys: None };
            (format!("db-{number}"), Place { door, node: format!("node{}", number % 2) })
        };
        let places: BTreeMap<String, Place> = (0..4).map(place).collect();
        let cuts = Cuts::default();
        let hit = || cuts.hit(&places).into_iter().collect::<Vec<_>>();
        assert!(hit().is_empty());
        let (node, pod) = (Cut::Node("node1".into()), Cut::Pod("10.0.0.3".into()));
        cuts.begin(node.clone());
        cuts.begin(pod.clone());
        cuts.begin(pod.clone());
        assert_eq!(hit(), ["db-1", "db-3"]);
        cuts.end(&node);
        assert_eq!(hit(), ["db-3"]);
        cuts.end(&pod);
        assert_eq!(hit(), ["db-3"], "it was cut off twice");
        cuts.end(&pod);
        assert!(hit().is_empty());
    }
}
