//! The rules for etcd's own settings and flags.

use super::Rule;
use crate::flags::{self, Spelling};

pub(super) fn settings() -> Vec<Rule> {
    const AT: &str = "spec.etcd";
    vec![
        Rule::new(
            AT,
            Some(".quota"),
            "!has(self.quota) || (isQuantity(self.quota) && quantity(self.quota).compareTo(quantity('16Mi')) >= 0 \
             && quantity(self.quota).compareTo(quantity('100Gi')) <= 0)",
            "spec.etcd.quota must be a quantity from 16Mi to 100Gi; write it as in 2Gi",
        ),
        Rule::new(
            "spec",
            Some(".etcd.quota"),
            "!has(self.etcd.quota) || !isQuantity(self.etcd.quota) || !isQuantity(self.storage.size) || \
             quantity(self.storage.size).compareTo(quantity(self.etcd.quota).add(quantity(self.etcd.quota)).add(quantity('512Mi'))) >= 0",
            "spec.etcd.quota leaves too little room: spec.storage.size must be at least twice the quota plus 512Mi, for \
             the log and for the copy that a defragmentation or a received snapshot makes; lower the quota or raise the size",
        ),
        Rule::new(
            AT,
            Some(".heartbeatIntervalMillis"),
            "self.heartbeatIntervalMillis >= 10 && self.heartbeatIntervalMillis <= 10000",
            "spec.etcd.heartbeatIntervalMillis must be from 10 to 10000; about the round trip between members is right",
        ),
        Rule::new(
            AT,
            Some(".electionTimeoutMillis"),
            "self.electionTimeoutMillis >= 5 * self.heartbeatIntervalMillis && self.electionTimeoutMillis <= 50000",
            "spec.etcd.electionTimeoutMillis must be at least five times spec.etcd.heartbeatIntervalMillis and at most \
             50000; ten times the heartbeat is right",
        ),
        Rule::new(
            AT,
            Some(".snapshotCount"),
            "self.snapshotCount >= 100 && self.snapshotCount <= 10000000",
            "spec.etcd.snapshotCount must be from 100 to 10000000; remove it for the default of 10000",
        ),
        Rule::new(
            "spec.etcd.autoCompaction",
            Some(".retention"),
            "self.mode != 'Periodic' || self.retention.matches('^(0|([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?)$')",
            "spec.etcd.autoCompaction.retention must be a duration in mode Periodic; write it as in 1h or 30m, or 0 to \
             compact nothing",
        ),
        Rule::new(
            "spec.etcd.autoCompaction",
            Some(".retention"),
            "self.mode != 'Revision' || self.retention.matches('^(0|[1-9][0-9]{0,17})$')",
            "spec.etcd.autoCompaction.retention must be a number of revisions in mode Revision; write it as in \"10000\", \
             or \"0\" to compact nothing",
        ),
    ]
}

/// What a flag is called in the conditions below.
const FLAG: &str = "f";

pub(super) fn extra_flags() -> Vec<Rule> {
    let dashed = format!("{FLAG}.startsWith('-')");
    let with_field = one_of(flags::WITH_FIELD.iter().map(|(name, _)| *name));
    let reserved = reserved();
    let allowed = one_of(flags::ALLOWED.iter().map(|flag| flag.name));
    let unknown = format!("!({allowed}) && !({dashed}) && !({with_field}) && !({reserved})");
    let fields: Vec<String> = flags::WITH_FIELD.iter().map(|(name, field)| format!("{field} for {name}")).collect();
    vec![
        no_flag(
            &dashed,
            "spec.etcd.extraFlags must hold names of flags without dashes in front; write log-level, not --log-level",
        ),
        no_flag(
            &with_field,
            format!("spec.etcd.extraFlags must not hold a flag that has a field of its own; use {}", fields.join(", ")),
        ),
        no_flag(
            &reserved,
            "spec.etcd.extraFlags must not hold a flag that Quorate sets itself or that endangers the data (names, \
             addresses, membership, directories, TLS, unsafe modes); remove it",
        )
        .telling(format!(
            "'spec.etcd.extraFlags must not hold ' + {} + ': Quorate sets it itself, or it endangers the data; remove it'",
            those(&reserved)
        )),
        no_flag(
            &unknown,
            "spec.etcd.extraFlags holds a flag that is not on the list of the API reference (in the names of etcd 3.6); \
             correct or remove it",
        )
        .telling(format!(
            "'spec.etcd.extraFlags holds ' + {} + ', which is not on the list of the API reference (in the names of etcd \
             3.6); correct or remove it'",
            those(&unknown)
        )),
        absent_on_3_5(),
    ]
}

/// No flag may be so.
fn no_flag(bad: &str, message: impl Into<String>) -> Rule {
    let condition = format!("!has(self.extraFlags) || !self.extraFlags.exists({FLAG}, {bad})");
    Rule::new("spec.etcd", Some(".extraFlags"), condition, message)
}

/// The names of the flags that are so, as an expression.
fn those(bad: &str) -> String {
    format!("self.extraFlags.filter({FLAG}, {bad}).join(', ')")
}

fn absent_on_3_5() -> Rule {
    let absent: Vec<&str> =
        flags::ALLOWED.iter().filter(|flag| flag.on_3_5 == Spelling::Absent).map(|flag| flag.name).collect();
    let condition = format!(
        "!self.version.startsWith('3.5.') || !has(self.etcd.extraFlags) || !self.etcd.extraFlags.exists({FLAG}, {})",
        one_of(absent.iter().copied())
    );
    let message = format!(
        "spec.etcd.extraFlags holds a flag that etcd 3.5 does not have ({}); remove it, or raise spec.version to 3.6",
        absent.join(", ")
    );
    Rule::new("spec", Some(".etcd.extraFlags"), condition, message)
}

/// The condition under which the flag is one that Quorate keeps for itself.
fn reserved() -> String {
    let (prefixes, names): (Vec<&str>, Vec<&str>) = flags::RESERVED.iter().partition(|entry| entry.ends_with('-'));
    format!("{} || {FLAG}.matches('^({})')", one_of(names.into_iter()), prefixes.join("|"))
}

fn one_of<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let quoted: Vec<String> = names.map(|name| format!("'{name}'")).collect();
    format!("{FLAG} in [{}]", quoted.join(", "))
}
