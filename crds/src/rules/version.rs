//! The rules for how many members of which version there may be.

use super::Rule;

/// The first patch of each line that Quorate runs. Below 3.5.30 and 3.6.11 etcd refuses a new member while any other is
/// down (etcd #21669 and #21667), so nothing heals. 3.5.32 is where the way to 3.6 begins, and 3.6.11 where the one to 3.7 does
/// (etcd's guides upgrade_3_6 and upgrade_3_7): whatever may be run may also be left upwards. `FLOORS` of quorate-statemachine
/// tells the same, for clusters from before this rule; neither crate knows the other, and a test in `quorate` compares them.
pub const OLDEST: [(&str, u32); 2] = [("3.5", 32), ("3.6", 11)];

/// The line that must not be left downwards from an earlier patch: those look for the last snapshot in the files of the old
/// store and not in their log, and so misjudge which version can read that (etcd #22171, on release-3.7 #22201). `FLOORS` tells
/// the same, as above.
pub const DOWN_FROM: (&str, u32) = ("3.7", 2);

pub(super) fn replicas() -> Vec<Rule> {
    vec![
        Rule::new(
            "spec.replicas",
            None,
            "self in [0, 1, 3, 5, 7]",
            "spec.replicas must be 1, 3, 5 or 7, or 0 to hibernate: an even number of members survives no more failures \
         than one member less; choose an odd number",
        ),
        Rule::new(
            "spec",
            Some(".replicas"),
            "self.replicas != 0 || !self.storage.ephemeral",
            "spec.replicas must not be 0 with spec.storage.ephemeral, because hibernation would lose all data; keep at least \
         one member, or delete the EtcdCluster",
        ),
    ]
}

/// A full version of a line that Quorate runs.
const FORM: &str = r"self.matches('^3[.][5-7][.](0|[1-9][0-9]{0,2})$')";

/// What keeps a version from being gone to: etcd takes a cluster down by one minor at a time, with members that all run
/// the higher one. Upwards Quorate walks from minor to minor by itself, as far as it knows the images on the way.
pub(super) fn steps() -> Vec<Rule> {
    let form = |of: &str| FORM.replace("self", &format!("{of}.version"));
    let minor = |of: &str| format!("int({of}.version.substring(2, 3))");
    let (new, old) = (minor("self"), minor("oldSelf"));
    let formed = format!("!{} || !{}", form("self"), form("oldSelf"));
    let (line, patch) = DOWN_FROM;
    vec![
        Rule::new(
            "spec",
            Some(".version"),
            format!("{formed} || {old} - {new} <= 1"),
            "spec.version can't go down by more than one minor version of etcd; set the one between first, and go on when \
             status.version shows it",
        ),
        Rule::new(
            "spec",
            Some(".version"),
            format!("{formed} || {new} - {old} <= 1 || !has(self.image.tag)"),
            "spec.version can't skip a minor version of etcd while spec.image.tag names one image; go one minor version at \
             a time with its own tag, or remove the tag",
        ),
        Rule::new(
            "spec",
            Some(".version"),
            format!(
                "{formed} || {new} >= {old} || !oldSelf.version.startsWith('{line}.') || \
                 int(oldSelf.version.substring(4)) >= {patch}"
            ),
            format!(
                "spec.version can't go down from an etcd {line} before {line}.{patch}, which misreads its log on the way \
                 (etcd #22201); set {line}.{patch} or later first, and go on when status.version shows it"
            ),
        ),
    ]
}

pub(super) fn version() -> Vec<Rule> {
    let floors: Vec<String> = OLDEST
        .iter()
        .map(|(line, patch)| format!("(!self.startsWith('{line}.') || int(self.substring(4)) >= {patch})"))
        .collect();
    let oldest: Vec<String> = OLDEST.iter().map(|(line, patch)| format!("{line}.{patch}")).collect();
    vec![
        Rule::new(
            "spec.version",
            None,
            FORM,
            "spec.version must be a full version of etcd 3.5, 3.6 or 3.7 without a leading v; write it as in 3.6.16",
        ),
        Rule::new(
            "spec.version",
            None,
            format!("!{FORM} || ({})", floors.join(" && ")),
            format!(
                "spec.version is too old: the oldest patches that Quorate runs are {}, because earlier ones refuse a \
                 new member while another is down; choose a later patch",
                oldest.join(" and ")
            ),
        ),
    ]
}
