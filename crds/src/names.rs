//! The names that users, other tools and every part of Quorate rely on. Changing one breaks running clusters.

/// The API group of every kind.
pub const GROUP: &str = "quorate.dev";
/// The API version of every kind.
pub const VERSION: &str = "v1alpha1";
/// The field manager of every server-side apply.
pub const FIELD_MANAGER: &str = "quorate";
/// The finalizer on an EtcdCluster: while it is there, members and volumes are taken away in order and as the retention
/// policy says.
pub const FINALIZER: &str = "quorate.dev/cluster";
/// The finalizer on an EtcdBackup whose deletion policy is `Delete`: while it is there, the backup is deleted from the store.
pub const FINALIZER_BACKUP: &str = "quorate.dev/backup";

/// The label that names the cluster on each child.
pub const LABEL_CLUSTER: &str = "quorate.dev/cluster";
/// The label of a pod whose member is a voter ([`ROLE_VOTER`], and [`ROLE_RETURNING`] until it was seen to vote and serve in
/// that pod); absent on learners and on pods that wait. The PodDisruptionBudget counts by it.
pub const LABEL_ROLE: &str = "quorate.dev/role";
/// The value of [`LABEL_ROLE`] for a voter that serves.
pub const ROLE_VOTER: &str = "voter";
/// The value of [`LABEL_ROLE`] for a voter in a new pod that was not seen to serve yet, and for a learner that is promoted.
pub const ROLE_RETURNING: &str = "returning-voter";
/// The label that names the EtcdBackup on its Job and that Job's pods. They carry no [`LABEL_CLUSTER`]: they are no members.
pub const LABEL_BACKUP: &str = "quorate.dev/backup";
/// The label that names the cluster on the Jobs, and their pods, that prove its continuous backup. They carry no
/// [`LABEL_CLUSTER`]: they are no members.
pub const LABEL_VERIFY: &str = "quorate.dev/verify";
/// The label with which Kubernetes names the Job on its pods.
pub const LABEL_JOB: &str = "batch.kubernetes.io/job-name";
/// The recommended label for the application.
pub const LABEL_NAME: &str = "app.kubernetes.io/name";
/// The value of [`LABEL_NAME`] on each child.
pub const APP_NAME: &str = "etcd";
/// The value of [`LABEL_NAME`] on what belongs to a backup.
pub const BACKUP_APP_NAME: &str = "etcd-backup";
/// The recommended label for one instance of the application: the cluster's name.
pub const LABEL_INSTANCE: &str = "app.kubernetes.io/instance";
/// The recommended label for the tool that manages the object.
pub const LABEL_MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// The value of [`LABEL_MANAGED_BY`] on each child.
pub const MANAGED_BY: &str = "quorate";

/// The annotation of a volume claim that carries the UID of the EtcdCluster it belongs to. A claim whose UID differs
/// belongs to an earlier cluster of the same name and is never adopted.
pub const ANNOTATION_CLUSTER_UID: &str = "quorate.dev/cluster-uid";
/// The annotation of a definition with the version of Quorate that it is of: an earlier operator leaves it as it is.
pub const ANNOTATION_QUORATE: &str = "quorate.dev/quorate-version";
/// The annotation of a pod that carries its start ticket.
pub const ANNOTATION_TICKET: &str = "quorate.dev/ticket";
/// The annotation of a pod that says when its ticket was issued, in milliseconds since 1970.
pub const ANNOTATION_TICKET_SINCE: &str = "quorate.dev/ticket-since";
/// The annotation of a pod that carries the hash of the template it was made from.
pub const ANNOTATION_TEMPLATE: &str = "quorate.dev/template";
/// On a Service, a disruption budget or a CronJob: the hash of all that was asked for in it when it was applied.
pub const ANNOTATION_APPLIED: &str = "quorate.dev/applied";
/// On a pod: the hash of the spec's scheduling that it was made with.
pub const ANNOTATION_SCHEDULING: &str = "quorate.dev/scheduling";
/// On a pod: its kubelet was made to look at it again. On a Service: the pod for which its endpoints were looked at again.
/// Read by nobody.
pub const ANNOTATION_URGED: &str = "quorate.dev/urged";

/// On a pod: the version that it is told to run, which its image has to hold.
pub const ANNOTATION_VERSION: &str = "quorate.dev/version";
/// On a pod: the image that it is told to run, as it was asked for: an admission webhook may have written another name for it
/// into the pod.
pub const ANNOTATION_IMAGE: &str = "quorate.dev/image";
/// On a pod that was told to run another image: the container that ran then. While it is still there, so is the old image.
pub const ANNOTATION_SWITCHED_FROM: &str = "quorate.dev/switched-from";
/// On a pod: the hash of the compute resources that it was given.
pub const ANNOTATION_RESOURCES: &str = "quorate.dev/resources";
/// On a pod: the hash of the compute resources that Kubernetes refused to give it while it runs.
pub const ANNOTATION_RESIZE_REFUSED: &str = "quorate.dev/resize-refused";
/// On a pod: a hash for each field of the spec that it was made from, to tell which ones have changed.
pub const ANNOTATION_SETTINGS: &str = "quorate.dev/settings";

/// On an EtcdBackup that is taken before a cluster goes to another minor: that minor.
pub const ANNOTATION_BEFORE: &str = "quorate.dev/before-version";

/// The value of [`LABEL_NAME`] on a pod in which a release is tried. Nothing else of a cluster selects it.
pub const TRIAL_NAME: &str = "etcd-trial";
/// On the pod of a trial: the member for which the release is tried.
pub const ANNOTATION_TRIAL_OF: &str = "quorate.dev/trial-of";

/// The longest name of an EtcdCluster. A member's name is also its pod's host name (63 bytes at most) and adds a dash
/// and up to ten digits; the rest is left for what a member's own children may add.
pub const CLUSTER_NAME_MAX: usize = 40;

/// The longest name of an EtcdBackup. Its Jobs are called by it, the longer one as [`deletion_job`] says, and a label of their pods
/// carries that: 63 bytes. (Kubernetes cuts it where it adds something for a pod.)
pub const BACKUP_NAME_MAX: usize = 56;

/// The Job that deletes a backup from its store.
pub fn deletion_job(backup: &str) -> String {
    format!("{backup}-delete")
}

/// The EtcdBackup that is taken before a cluster goes to this minor (`3.7`), at this generation of its spec.
pub fn snapshot_before(cluster: &str, minor: &str, generation: i64) -> String {
    format!("{cluster}-to-{}-{generation}", minor.replace('.', "-"))
}

/// The CronJob that proves the continuous backup of a cluster.
pub fn verification(cluster: &str) -> String {
    format!("{cluster}-verify")
}

/// The client Service of a cluster.
pub fn client_service(cluster: &str) -> String {
    format!("{cluster}-client")
}

/// The Secret with a certificate for clients of a cluster, which applications mount.
pub fn client_secret(cluster: &str) -> String {
    format!("{cluster}-client")
}

/// The Secret of the authority that signs what members show each other.
pub fn peer_authority(cluster: &str) -> String {
    format!("{cluster}-peer-ca")
}

/// The Secret of the authority that signs what members and their clients show each other.
pub fn client_authority(cluster: &str) -> String {
    format!("{cluster}-client-ca")
}

/// The name that a member, its pod, its volume claim and its Secret share.
pub fn member(cluster: &str, serial: u32) -> String {
    format!("{cluster}-{serial}")
}

/// The pod in which a release is tried for a member; `which` tells releases apart.
pub fn trial(member: &str, which: &str) -> String {
    format!("{member}-trial-{which}")
}

/// The serial in a member's name, if the name is one of this cluster's.
pub fn serial(cluster: &str, member: &str) -> Option<u32> {
    let digits = member.strip_prefix(cluster)?.strip_prefix('-')?;
    let canonical = digits == "0" || !digits.starts_with('0');
    (canonical && digits.bytes().all(|b| b.is_ascii_digit())).then(|| digits.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_members_serial_is_read_back(cluster in "[a-z][a-z0-9-]{0,38}[a-z0-9]", number in any::<u32>()) {
            prop_assert_eq!(serial(&cluster, &member(&cluster, number)), Some(number));
        }

        #[test]
        fn any_text_is_read_without_a_panic(cluster in ".{0,12}", name in ".{0,20}") {
            if let Some(number) = serial(&cluster, &name) {
                prop_assert_eq!(member(&cluster, number), name);
            }
        }
    }

    #[test]
    fn the_longest_cluster_name_leaves_valid_children() {
        let cluster = "c".repeat(CLUSTER_NAME_MAX);
        assert!(member(&cluster, u32::MAX).len() <= 63);
        assert!(client_service(&cluster).len() <= 63);
        assert!(verification(&cluster).len() <= 52, "a CronJob's name leaves room for its Jobs'");
        assert!(
            snapshot_before(&cluster, "3.7", 99_999_999).len() <= BACKUP_NAME_MAX,
            "a spec that is changed for ever"
        );
        assert!(deletion_job(&"b".repeat(BACKUP_NAME_MAX)).len() <= 63);
    }

    #[test]
    fn names_of_other_clusters_have_no_serial() {
        for name in ["db", "db-", "db-x", "db-01", "db-1-2", "other-1", "db-99999999999", "db-+1", "db-1-trial-0a"] {
            assert_eq!(serial("db", name), None, "{name}");
        }
    }
}
