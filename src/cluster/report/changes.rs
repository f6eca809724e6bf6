//! The words for changes of versions, images and resources. Only words; when they are told is decided elsewhere.

use quorate_crds::names;
use quorate_statemachine::{Failed, Floor, Outcome, Plan, Release, Saved, Serial, Version, floor};

use crate::cluster::observe::Observed;
use crate::cluster::observe::snapshots::SnapshotFacts;
use crate::cluster::observe::trials::TrialFacts;

pub const ROLL_WAITS: &str = "The next member is changed when all are ready, caught up and connected to each other.";
pub const VERSIONS_UNKNOWN: &str =
    "The next step waits until it is known what the members run, and what the cluster runs at.";
pub const CLUSTER_VERSION_LAGS: &str = "All members are told to run the new version. The next step waits for etcd to move the \
                                        cluster's own, which takes some seconds once all of them are up.";
pub const DOWNGRADE_UNDER_WAY: &str = "etcd lowers the version of the cluster, and of each database. The next step waits for \
                                       that, which takes some seconds once all members are up.";
pub const LOGS_ARE_CUT: &str =
    "Every member takes a snapshot, so that no log entry is left that the next version can't read.";
pub const ALARM_RAISED: &str = "An alarm is raised in etcd, so versions are not changed. Mend what `etcdctl alarm list` \
                                tells of, and disarm it.";
pub const NO_SPACE: &str = "A database has reached its quota, so etcd refuses writes. Compact it and run `etcdctl defrag` on \
                            one member after the other, or raise spec.etcd.quota; then `etcdctl alarm disarm`.";
pub const CORRUPT: &str = "A member holds other data than the others, so etcd refuses writes. `etcdctl alarm list` has its \
                           id in decimal, status.members in hexadecimal: have it replaced with `kubectl delete pvc \
                           <member> --wait=false`, and only then `etcdctl alarm disarm`. Of memberID:0 etcd does not \
                           know which it is: delete and disarm nothing, and begin another EtcdCluster with a backup \
                           from before.";
pub const NO_WAY_THROUGH: &str = "The way to spec.version leads through a version for which the spec names no image. Go \
                                  one minor version at a time, or remove spec.image.tag.";

pub fn resources_outdated(member: &str) -> String {
    format!("{member}: it is given the resources of spec.resources when its turn comes.")
}

/// A pod that is not replaced, as its next one could not be started.
pub fn node_cordoned(node: &str, member: &str) -> String {
    format!(
        "{member}: its pod is out of date and is left as it is. Its volume is of node {node}, which takes no new pods: uncordon \
         the node, or delete the claim, and the member is replaced elsewhere."
    )
}

pub fn no_room(observed: &Observed, about: Option<Serial>, member: &str) -> String {
    let pod = about.and_then(|serial| observed.pods.get(&serial));
    let words = pod.and_then(|pod| pod.resize_pending.as_deref()).unwrap_or_default();
    format!("{member}: make room on its node for spec.resources, or lower them: {words}")
}

pub fn release_outdated(member: &str) -> String {
    format!("{member}: it is told to run another version or image when its turn comes.")
}

pub fn trial_open(observed: &Observed, about: Option<Serial>, member: &str) -> String {
    let words = said_of_trial(observed, about, Outcome::Open).map(|words| format!(" {words}")).unwrap_or_default();
    format!("{member}: the new image is being tried on its node.{words}")
}

pub fn trial_missing(observed: &Observed, about: Option<Serial>, member: &str) -> String {
    if let Some(TrialFacts { name, words, .. }) = trial(observed, about, Outcome::AgentImageMissing) {
        return format!(
            "{member}: the new image can't be tried on its node for want of another one, which is not etcd's; nothing was \
             stopped. Provide it, or set that of the agent in the operator's QUORATE_AGENT_IMAGE and delete pod {name}: {words}"
        );
    }
    if let Some(TrialFacts { words, .. }) = trial(observed, about, Outcome::ImageUnreachable) {
        return format!(
            "{member}: the registry of the new image does not answer its node; nothing was stopped. It is asked again. If \
             this lasts, mend the registry or the way there, or correct spec.image: {words}"
        );
    }
    format!(
        "{member}: the new image can't be pulled on its node; nothing was stopped. Correct spec.version or spec.image, or \
         provide the image: {}",
        trial_words(observed, about, Outcome::ImageMissing)
    )
}

pub fn trial_failed(observed: &Observed, about: Option<Serial>, member: &str) -> String {
    format!(
        "{member}: the new image can't be used; nothing was stopped. Correct spec.version, spec.image or \
         spec.etcd.extraFlags: {}",
        trial_words(observed, about, Outcome::Failed)
    )
}

pub fn trial_undecided(observed: &Observed, about: Option<Serial>, member: &str) -> String {
    let trial = trial(observed, about, Outcome::Undecided);
    let who = trial.map_or_else(
        || "its node could not try the new image".to_owned(),
        |trial| format!("its node {} could not try the image {}", trial.node.as_str(), trial.release.image.as_str()),
    );
    format!(
        "{member}: {who}; nothing was stopped. It is asked again. If this lasts, mend what keeps it from that: {}",
        trial_words(observed, about, Outcome::Undecided)
    )
}

fn trial_words(observed: &Observed, about: Option<Serial>, outcome: Outcome) -> &str {
    said_of_trial(observed, about, outcome).unwrap_or("see the events of the trial's pod")
}

fn said_of_trial(observed: &Observed, about: Option<Serial>, outcome: Outcome) -> Option<&str> {
    trial(observed, about, outcome).map(|trial| trial.words.as_str()).filter(|words| !words.is_empty())
}

fn trial(observed: &Observed, about: Option<Serial>, outcome: Outcome) -> Option<&TrialFacts> {
    let mut trials = observed.trials.iter().filter(|(serial, _)| Some(*serial) == about).map(|(_, trial)| trial);
    trials.find(|trial| trial.outcome == outcome)
}

pub fn snapshot_open(observed: &Observed) -> String {
    snapshot(observed, Saved::UnderWay).map_or_else(
        || "A snapshot is taken before the members go to another version.".into(),
        |SnapshotFacts { name, before, words, .. }| {
            format!("The members go to {before} once the snapshot EtcdBackup {name} is in the store. {words}")
        },
    )
}

pub fn snapshot_failed(observed: &Observed) -> String {
    let (name, words) = snapshot(observed, Saved::Failed).map_or(("", ""), |facts| (&facts.name, &facts.words));
    format!(
        "The snapshot before another version failed; nothing was stopped. Mend what is wrong and delete EtcdBackup {name} \
         for another to be taken, or set spec.backup.beforeUpgrade to Skip: {words}"
    )
}

fn snapshot(observed: &Observed, saved: Saved) -> Option<&SnapshotFacts> {
    observed.snapshots.values().find(|facts| facts.saved == saved)
}

/// The patch that has to be gone to first, and why.
pub fn below_floor(observed: &Observed) -> String {
    let runs = observed.pods.values().filter_map(|pod| pod.release.as_ref()).map(|release| release.version);
    let wished = observed.world.wish.release.version.minor;
    let next = |version: Version| if wished > version.minor { version.minor.next() } else { version.minor.previous() };
    let mut found = runs.filter_map(|version| floor(version.minor, next(version)).filter(|floor| version < floor.from));
    found.next().map_or_else(
        || "A later patch of the version that runs has to be gone to first.".into(),
        |Floor { from, to, why, source }| {
            format!("Set spec.version to {from} or a later patch before {to}: {why} ({source}).")
        },
    )
}

pub fn release_failed(observed: &Observed, plan: &Plan) -> String {
    let failed = super::ledger_of(observed, plan).and_then(|ledger| ledger.failed.as_ref());
    let cluster = observed.cluster.metadata.name.as_deref().unwrap_or_default();
    let remedy = "Read its earlier log (kubectl logs -p), and set spec.version back, or to another patch.";
    match failed {
        Some(Failed { release: Release { version, image }, wished: _, serial }) => format!(
            "{} did not run on etcd {version} ({}) and was taken back to what it ran before; the others stay. {remedy}",
            names::member(cluster, serial.0),
            image.as_str(),
        ),
        None => format!("A member did not run on the new version and was taken back. {remedy}"),
    }
}

#[cfg(test)]
mod tests {
    use quorate_statemachine::Image;

    use super::*;
    use crate::cluster::report::fixture::healthy;

    /// What is told where the members run `runs` and `wished` is wished for.
    fn told(runs: Version, wished: Version) -> String {
        let mut observed = healthy();
        observed.world.wish.release = Release { version: wished, image: Image::new("etcd") };
        for pod in observed.pods.values_mut() {
            pod.release = Some(Release { version: runs, image: Image::new("etcd") });
        }
        below_floor(&observed)
    }

    #[test]
    fn the_floor_is_told_with_its_reason_and_its_source() {
        for (runs, wished, words) in [
            (Version::new(5, 20), Version::new(6, 16), ["3.5.32", "#19557", "etcd.io/docs/v3.6/upgrades"]),
            // Two minors away: the floor of the step that comes next.
            (Version::new(5, 20), Version::new(7, 3), ["3.5.32", "#19557", "etcd.io/docs/v3.6/upgrades"]),
            (Version::new(6, 4), Version::new(7, 3), ["3.6.11", "#21667", "etcd.io/docs/v3.7/upgrades"]),
            (Version::new(7, 1), Version::new(6, 16), ["3.7.2", "#22201", "etcd-io/etcd/pull/22201"]),
        ] {
            let told = told(runs, wished);
            assert!(words.iter().all(|word| told.contains(word)), "{runs} to {wished}: {told}");
        }
        // Nothing is made up where a pod was changed since.
        assert!(!told(Version::new(5, 35), Version::new(6, 16)).contains('#'));
    }
}
