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

pub(super) fn extra_flags() -> Vec<Rule> {
    let with_field = list(flags::WITH_FIELD.iter().map(|(name, _)| *name));
    let reserved = list(flags::RESERVED.iter().copied());
    let allowed = list(flags::ALLOWED.iter().map(|flag| flag.name));
    let fields: Vec<String> = flags::WITH_FIELD.iter().map(|(name, field)| format!("{field} for {name}")).collect();
    let names: Vec<&str> = flags::ALLOWED.iter().map(|flag| flag.name).collect();
    vec![
        flag_rule(
            "!self.extraFlags.exists(f, f.startsWith('-'))",
            "spec.etcd.extraFlags must hold names of flags without dashes in front; write log-level, not --log-level",
        ),
        flag_rule(
            &format!("!self.extraFlags.exists(f, f in {with_field})"),
            format!("spec.etcd.extraFlags must not hold a flag that has a field of its own; use {}", fields.join(", ")),
        ),
        flag_rule(
            &format!("!self.extraFlags.exists(f, f in {reserved})"),
            "spec.etcd.extraFlags must not hold a flag that Quorate sets itself or that endangers the data (names, \
             addresses, membership, directories, TLS, unsafe modes); remove it",
        ),
        flag_rule(
            &format!(
                "!self.extraFlags.exists(f, !(f in {allowed}) && !(f in {with_field}) && !(f in {reserved}) && !f.startsWith('-'))"
            ),
            format!(
                "spec.etcd.extraFlags holds a flag that may not be set; correct or remove it. In the names of etcd 3.6 \
                 these may be set: {}",
                names.join(", ")
            ),
        ),
        absent_on_3_5(),
    ]
}

fn flag_rule(condition: &str, message: impl Into<String>) -> Rule {
    Rule::new("spec.etcd", Some(".extraFlags"), format!("!has(self.extraFlags) || {condition}"), message)
}

fn absent_on_3_5() -> Rule {
    let absent: Vec<&str> =
        flags::ALLOWED.iter().filter(|flag| flag.on_3_5 == Spelling::Absent).map(|flag| flag.name).collect();
    let condition = format!(
        "!self.version.startsWith('3.5.') || !has(self.etcd.extraFlags) || !self.etcd.extraFlags.exists(f, f in {})",
        list(absent.iter().copied())
    );
    let message = format!(
        "spec.etcd.extraFlags holds a flag that etcd 3.5 does not have ({}); remove it, or raise spec.version to 3.6",
        absent.join(", ")
    );
    Rule::new("spec", Some(".etcd.extraFlags"), condition, message)
}

/// A list of words in CEL.
fn list<'a>(words: impl Iterator<Item = &'a str>) -> String {
    let quoted: Vec<String> = words.map(|word| format!("'{word}'")).collect();
    format!("[{}]", quoted.join(", "))
}
