//! The closed set of reasons in conditions, events and member statuses. What each means is written here and nowhere else.

/// Declares the reasons once: the enum, its words, and the text that the API reference shows for each.
macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Why a condition is as it is, or what an event tells.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub enum Reason { $($(#[doc = $doc])+ $name,)+ }

        impl Reason {
            /// Every reason, in the order of the reference.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// The reason as it is written.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),+ }
            }

            /// What it means and what the user does, as the reference shows it.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+)),+ }
            }
        }
    };
}

reasons! {
    /// No operator has looked at the object yet. If this lasts, see whether the operator runs and looks after this
    /// namespace.
    Unseen,
    /// The cluster is as asked for. Nothing to do.
    ClusterReady,
    /// Quorate is working towards the spec. Nothing to do.
    Progressing,
    /// The first member is being started. Nothing to do.
    Seeding,
    /// A backup is being restored into the first member. Nothing to do.
    Restoring,
    /// The EtcdBackup that the cluster begins with is still being taken. Nothing to do.
    BackupAwaited,
    /// There is no such backup: no EtcdBackup of the name in `spec.bootstrap.restore.backup`, or none in the store that
    /// is what was asked for. The message says what there is. Create the backup; or create the cluster anew with another
    /// `spec.bootstrap`.
    BackupMissing,
    /// The EtcdBackup that the cluster is to begin with has failed. Create the cluster anew with another one.
    BackupFailed,
    /// A part of the backup is missing or damaged; the message names it. Delete it, if it is there, and put it back from a
    /// copy (`quorate-agent copy`), upon which the restore goes on; or create the cluster anew with another backup, or with
    /// a `revision` or `time` before the damage: what is sound of a continuous backup restores.
    BackupDamaged,
    /// The volume has no room for the restore, which needs the database's size and 136 MiB for the log, or what the message says. Make
    /// `spec.storage.size` larger.
    NoRoomToRestore,
    /// What is live in the backup takes more than etcd may have, which would refuse every write. Make `spec.etcd.quota` larger.
    AboveQuota,
    /// The restore failed for another reason, which the message has. It is tried again.
    RestoreFailed,
    /// A backup was restored, and the first member was told to create the cluster from it. Nothing to do.
    Restored,
    /// Members are being added: to a new cluster, or after `spec.replicas` was raised. Nothing to do.
    Growing,
    /// Members are being removed after `spec.replicas` was lowered. Nothing to do.
    Scaling,
    /// A change of size, a removal or replacement, or a hand-over of the leadership waits, because too few healthy voters
    /// would be left. Nothing to do, unless a further condition or event says so.
    ScalingHeld,
    /// A member is being brought back or replaced. Nothing to do.
    Healing,
    /// Members are being restarted one by one with changed settings. Nothing to do.
    Rolling,
    /// Compute resources are given to members while they run. Nothing to do.
    Resizing,
    /// A member's node has no room for the compute resources that `spec.resources` asks for. Make room on the node, or
    /// lower them.
    NoRoomToResize,
    /// Members are being brought to another version of etcd, one by one, one minor a step. Nothing to do.
    Upgrading,
    /// A member was told to run another version or image. Nothing to do.
    MemberSwitched,
    /// What members run was changed because of these fields of the spec. Nothing to do.
    SpecChanged,
    /// etcd was allowed to lower the version that the cluster runs at: for a downgrade, or for a moment so that every
    /// member takes a snapshot before a version that can't read its older log. Nothing to do.
    DowngradeEnabled,
    /// That was taken back. Nothing to do.
    DowngradeCancelled,
    /// The image of the new version can't be pulled on a member's node. Nothing was stopped. Correct `spec.version` or
    /// `spec.image`, or make the image or its registry available. Where the message says that it is not etcd's, it is mostly
    /// the agent's: the operator's `QUORATE_AGENT_IMAGE`.
    TrialImageMissing,
    /// On a member's node the new image turned out to hold another version, not to take the member's flags, or not to
    /// run. Nothing was stopped. Correct `spec.version`, `spec.image` or `spec.etcd.extraFlags`.
    TrialFailed,
    /// A member's node could not try the new image: it turned the trial's pod away, stopped it, or can't begin its container.
    /// That says nothing of the image. Nothing was stopped, and the node is asked again. If this lasts, mend what the message
    /// says of the node; or, to stay on the version that runs, set `spec.version` and `spec.image` back.
    TrialUndecided,
    /// A snapshot was ordered before the members go to another minor version. Nothing to do.
    SnapshotOrdered,
    /// The snapshot before another minor version can't be taken, so the version is not changed; the message says why. Mend
    /// that and delete the EtcdBackup that the message names, for another to be made; or set
    /// `spec.backup.beforeUpgrade: Skip`.
    SnapshotFailed,
    /// A member did not run on the new version and was taken back to the one before; the others were left as they are.
    /// Read the member's earlier log. Set `spec.version` back, or to another patch; to try the same again, set it back
    /// first.
    ReleaseFailed,
    /// An alarm is raised in etcd, so the version is not changed. Mend what it tells of (`etcdctl alarm list`), and
    /// disarm it.
    AlarmRaised,
    /// A database has reached `spec.etcd.quota` (the alarm `NOSPACE`), so etcd refuses writes. Compact it and run `etcdctl
    /// defrag` on one member after the other, or raise the quota; then `etcdctl alarm disarm`.
    NoSpace,
    /// etcd has found that a member holds other data than the others (the alarm `CORRUPT`), and refuses writes. `etcdctl
    /// alarm list` has its id in decimal, `status.members` in hexadecimal: have it replaced with `kubectl delete pvc <member>
    /// --wait=false`, and only then `etcdctl alarm disarm`. Of `memberID:0` etcd does not know which it is: delete and disarm
    /// nothing, and begin another EtcdCluster with a backup from before.
    Corrupt,
    /// The way to `spec.version` leads through a version for which the spec names no image, because `spec.image.tag` is
    /// set. Go one minor version at a time, or remove the tag. Or the patch that runs is too old to leave: the message names
    /// the one to set first.
    NoWayThrough,
    /// `spec.paused` is set: nothing is changed or healed. Set it to false to go on.
    Paused,
    /// `spec.replicas` is 0: no pods, every volume kept. Raise it to wake the cluster.
    Hibernated,
    /// The cluster can't serve: a majority of its members is down. If their volumes are there, Quorate brings them back.
    /// If a majority of volumes is lost, it stops, keeps what is left and seeds nothing: begin another EtcdCluster with an
    /// EtcdBackup or the continuous backup (`spec.bootstrap.restore`); without one, rescue what is left
    /// (`docs/failure-modes.md`).
    QuorumLost,
    /// The first member was told to create the cluster. Nothing to do.
    Seeded,
    /// A member was added as a learner. Nothing to do.
    MemberAdded,
    /// A learner became a voter. Nothing to do.
    MemberPromoted,
    /// A member was removed from the cluster. Nothing to do.
    MemberRemoved,
    /// The leadership was moved to another member before a change. Nothing to do.
    LeaderMoved,
    /// Not all members are healthy voters, though nothing else is amiss. `status.members[].health` tells which; look at its
    /// log if this lasts.
    MemberUnhealthy,
    /// A learner did not come up or catch up in time; another takes its place. Look at the disk and the network if this
    /// lasts.
    LearnerBehind,
    /// A pod was created. Nothing to do.
    PodCreated,
    /// A pod was deleted. Nothing to do.
    PodDeleted,
    /// A member's pod is gone; it is created again on the same volume. Nothing to do.
    PodMissing,
    /// The scheduler finds no node for a pod. Add a node, or loosen `spec.scheduling` or `spec.resources`.
    Unschedulable,
    /// An image can't be pulled. Correct `spec.version` or `spec.image`, or make the image or its registry available.
    /// Where the message says that it is not etcd's, it is mostly the agent's: the operator's `QUORATE_AGENT_IMAGE`.
    ImageMissing,
    /// A container fails, or is killed, again and again. Read its log and the message.
    ContainerFailing,
    /// A volume claim was deleted, as `spec.storage.retention` says. Nothing to do.
    VolumeDeleted,
    /// A volume claim waits for its volume. Look at the claim's events; the StorageClass's provisioner may be missing.
    VolumePending,
    /// A member's volume is gone. With a majority of members up it is replaced; nothing to do.
    VolumeLost,
    /// A member's volume claim is being deleted. With a majority of members up the member is replaced; nothing to do.
    VolumeGoing,
    /// A launcher found that the volume is not the member's own, and did not start. With a majority of members up the
    /// member is replaced. If the volume was exchanged by hand, put the right one back.
    VolumeRefused,
    /// A launcher does not start etcd, for a reason that is not the volume's data. The message has it: for example another
    /// version in the image than `spec.version` says.
    LauncherRefuses,
    /// The StorageClass that `spec.storage.storageClassName` names does not exist, or there is no default class. Create
    /// it, or name one that exists.
    StorageClassMissing,
    /// A member's node is not Ready. Its process may still run there, so nothing is started elsewhere under its name.
    /// Bring the node back; or delete it, or taint it `node.kubernetes.io/out-of-service`, when it is off for good.
    NodeUnreachable,
    /// A member's node is gone for good. A member whose volume went with it is replaced while a majority is up; one on a
    /// volume of the network is started on another node. Nothing to do.
    NodeGone,
    /// There are volumes or members of this cluster that the ledger in its status does not know of, as after a restore of
    /// the object without its status. Nothing is seeded, and members that run go on serving, but nothing is done for them.
    /// Delete no claim. Write `status.ledger` back (`docs/failure-modes.md`). If there is no copy of it: make sure that
    /// `spec.storage.retention.onDelete` is `Retain`, take an EtcdBackup while the members serve, or use the continuous
    /// backup, and begin a cluster of another name with that.
    LedgerMissing,
    /// The ledger in the status can't be read or contradicts itself. Restore the status from before it was edited.
    LedgerUnreadable,
    /// There are volume claims of an earlier object of this name. They are not used and not deleted. If it was this cluster,
    /// deleted and created again, write `status.ledger` of the earlier object back. Else delete them when their data is no
    /// longer needed, or use another name.
    ForeignVolumes,
    /// Members can't be asked, so nothing is known of etcd. Quorate tries again; look at the network if this lasts.
    EtcdUnknown,
    /// etcd lists a member that Quorate did not add. Quorate changes no membership until it is gone: remove it with
    /// `etcdctl member remove`. Or the id of the cluster is not `status.ledger.clusterId`, as after the wrong ledger was written
    /// back: then remove nobody, and write the right one.
    MembershipForeign,
    /// etcd's users are turned on (`etcdctl auth enable`), and the operator may not change members. Give the user that its
    /// certificate names the role root: `docs/tls.md` says which that is.
    EtcdForbids,
    /// Every certificate can be used, until the date in the message. Nothing to do.
    CertificatesValid,
    /// Certificates are being issued. Nothing to do.
    CertificatesPending,
    /// Certificates were renewed, without a restart. Nothing to do.
    CertificatesRenewed,
    /// A certificate runs out soon. Put a new one into the Secret that the message names; if Quorate issues it, look for
    /// what keeps Quorate from writing Secrets (`spec.paused`, or an error in its log).
    CertificatesExpiring,
    /// A certificate can't be used. The message names the Secret and each fault; correct the Secret. A cluster is not
    /// begun with such a certificate; one that runs goes on as long as etcd accepts it, but no member that serves is
    /// restarted or changes its version, and none is added, until it is mended (`Stalled`).
    CertificatesFaulty,
    /// The Secret of a certificate authority is gone or damaged, or holds another authority than the one that members trust,
    /// so nothing is issued or renewed. Put the old Secret back. If that can't be done, see the section on lost authorities
    /// in `docs/tls.md`.
    AuthorityLost,
    /// `spec.tls.mode` is `Disabled`: there are no certificates. Nothing to do.
    TlsDisabled,
    /// The snapshot is being taken. Nothing to do.
    SnapshotRunning,
    /// The backup is in the store, whole and proved. Nothing to do.
    BackupComplete,
    /// The object is being deleted, and before it the backup in the store, as `spec.deletionPolicy` says. If it waits for
    /// something, the message names it. Nothing to do; to keep the backup, set `spec.deletionPolicy` to `Retain` before its Job
    /// has begun.
    BackupDeleting,
    /// The backup was deleted from the store. Nothing to do.
    BackupDeleted,
    /// The object was deleted, and the backup is still in the store, in whole or in part, or may be: the message says where and
    /// why.
    /// Remove it with `quorate-agent delete` when what stood in the way is gone. Where a continuous backup records, leave it to
    /// `spec.backup.retention`: a sidecar that goes on from it notices within a minute that it is gone, and what was recorded
    /// meanwhile can't be restored.
    BackupLeft,
    /// There is no EtcdCluster of the name in `spec.cluster`. Create it, or create a backup of another one.
    ClusterMissing,
    /// No member can be read. See why the cluster does not serve.
    NoHealthyMember,
    /// The Secret that the store's `credentials` or `encryption` names does not exist. Create it.
    SecretMissing,
    /// The pod that takes the snapshot does not start; the message says why. Look for its image, its Secrets and its volume.
    PodWaiting,
    /// The store's address, an option, or the form of its credentials is wrong. Correct the Secret; or create another
    /// EtcdBackup or EtcdCluster with what the message names corrected.
    StoreInvalid,
    /// The bucket does not exist. Create it, or correct its name or region.
    BucketMissing,
    /// The backups are to be encrypted, or are, and the keys for it are missing, damaged, or others; the message says which.
    /// Correct `recipients` (to write) or `identity` (to read) in the Secret that the store's `encryption.secretName` names; then
    /// create another EtcdBackup, if one has failed for it.
    KeysUnfit,
    /// The store refuses the credentials. Correct them, or what they may do: get, put, list, delete.
    StoreRefused,
    /// The store can't do what backups need, or something else is kept at the address. The message says which.
    StoreUnfit,
    /// The volume in which backups are kept has no room for this one, or takes no file that large. The message says which. Make
    /// it larger, or remove old backups from it (`quorate-agent prune`), or raise the limit; then create another EtcdBackup.
    StoreFull,
    /// The store does not answer, or fails. An EtcdBackup is tried five times and has then failed: create another when the
    /// store answers. A continuous backup, or a restore, goes on trying.
    StoreFailed,
    /// The snapshot did not arrive whole, or is no sound database. Nothing of it was kept. An EtcdBackup is tried five times
    /// and has then failed: create another. A continuous backup goes on trying.
    SnapshotBroken,
    /// The time in `spec.timeoutMinutes` is over. The message says what was last seen.
    TimedOut,
    /// The Job has failed without a word of the agent's. Look at its pods' logs.
    JobFailed,
    /// The Job was deleted before its result was seen. Create another EtcdBackup.
    JobGone,
    /// The Job has ended well and its result was not seen. `quorate-agent list` shows whether the backup is there.
    ResultUnknown,
    /// An object that Quorate did not create has the name that its own would have; the message says which. It is left alone.
    /// Delete it if nobody needs it, or choose another name for it, or for the cluster or the backup. An earlier one of
    /// Quorate's that is being deleted is waited for; if that lasts, the message says what holds it. To an object of
    /// Quorate's own that has lost its label, give it back.
    NameTaken,
    /// The spec can't be carried out as it is. Correct the field that the message names.
    SpecInvalid,
    /// Kubernetes refused to create, change or show an object, for example by a quota, an admission policy, or for want of a
    /// right of Quorate's. The message has its answer; Quorate tries again.
    ObjectRefused,
    /// `spec.backup` is not set: there is no continuous backup.
    BackupOff,
    /// Every write reaches the continuous backup in time. Nothing to do.
    Archiving,
    /// The continuous backup has not begun: its first full snapshot is being taken. Nothing to do.
    ArchiveBegins,
    /// The continuous backup is behind what was written by more than three flush intervals and 20 seconds. Look at the log
    /// of the container `archive` in the pod of the member that leads.
    ArchiveBehind,
    /// No sidecar of a member tells how the continuous backup is. Look for the container `archive` in the members' pods.
    ArchiveUnknown,
    /// The last attempt to prove that the continuous backup restores has failed; the message says why. What the store holds
    /// may be damaged: the message names the object then, and that is what to mend. `quorate-agent inspect` shows which
    /// revisions its generation holds; `list` shows damaged manifests only, and no damaged data. A new generation begins by
    /// itself within `spec.backup.fullIntervalMinutes`; an EtcdBackup to the same address is one at once. To try again, run
    /// `kubectl create job --from=cronjob/<cluster>-verify again`.
    BackupUnproved,
    /// The object is being deleted: members first, then volumes as `spec.storage.retention.onDelete` says. Nothing to do.
    ClusterDeleting,
    /// Quorate can't go on without help, and no other reason says more. A round that fails shows in the operator's log and
    /// in `quorate_reconciles_total`; the status then stays as it was.
    ReconcileFailed,
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_written_as_they_are_spelled() -> Result<(), serde_json::Error> {
        for reason in Reason::ALL {
            assert_eq!(serde_json::to_value(reason)?, reason.as_str());
        }
        Ok(())
    }

    #[test]
    fn each_reason_fits_a_condition_and_says_what_it_means() {
        for reason in Reason::ALL {
            // The limits of Condition.reason: at most 1024 bytes, CamelCase; of an event's reason: 128 bytes.
            assert!(reason.as_str().len() <= 128 && reason.as_str().bytes().all(|b| b.is_ascii_alphabetic()));
            assert!(reason.meaning().trim().ends_with('.'), "{reason}: {}", reason.meaning());
        }
    }
}
