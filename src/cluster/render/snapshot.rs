//! The EtcdBackup that is taken before a cluster goes to another minor version. How it is taken is its own controller's
//! matter.

use quorate_crds::{DeletionPolicy, EtcdBackup, EtcdBackupSpec, names};
use quorate_statemachine::Minor;

use super::Cluster;

/// How long it is tried: longer than a store is usually away, since until then the version is not changed.
const TIMEOUT_MINUTES: i32 = 60;

/// The snapshot before the cluster goes to this minor, at this generation of its spec; `None` without a store.
pub fn snapshot(cluster: &Cluster<'_>, to: Minor, generation: i64) -> Option<EtcdBackup> {
    let store = cluster.spec.backup.as_ref()?.store.clone();
    let minor = to.to_string();
    let mut metadata = cluster.owned(names::snapshot_before(cluster.name, &minor, generation));
    metadata.annotations = Some([(names::ANNOTATION_BEFORE.to_owned(), minor)].into());
    let spec = EtcdBackupSpec {
        cluster: cluster.name.to_owned(),
        store,
        timeout_minutes: TIMEOUT_MINUTES,
        ttl_minutes: None,
        // It is deleted with its cluster. What is in the store is worth most then.
        deletion_policy: DeletionPolicy::Retain,
    };
    Some(EtcdBackup { metadata, spec, status: None })
}
