//! The rules for etcd's own settings and flags.

use super::{Rule, is_amount, is_no_amount};
use crate::flags::{self, Kind, Spelling};

pub(super) fn settings() -> Vec<Rule> {
    const AT: &str = "spec.etcd";
    vec![
        Rule::new(
            AT,
            Some(".quota"),
            format!(
                "!has(self.quota) || ({} && quantity(self.quota).compareTo(quantity('16Mi')) >= 0 \
                 && quantity(self.quota).compareTo(quantity('100Gi')) <= 0)",
                is_amount("self.quota")
            ),
            "spec.etcd.quota must be a quantity from 16Mi to 100Gi; write it as in 2Gi",
        ),
        Rule::new(
            "spec",
            Some(".etcd.quota"),
            format!(
                "!has(self.etcd.quota) || {} || {} || \
                 quantity(self.storage.size).compareTo(quantity(self.etcd.quota).add(quantity(self.etcd.quota)).add(quantity('512Mi'))) >= 0",
                is_no_amount("self.etcd.quota"),
                is_no_amount("self.storage.size")
            ),
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
            format!(
                "self.mode != 'Periodic' || (self.retention.matches('^(0|([0-9]{{1,6}}h)?([0-9]{{1,6}}m)?([0-9]{{1,6}}s)?)$') && \
                 {})",
                not_too_long("self.retention")
            ),
            format!(
                "spec.etcd.autoCompaction.retention must be a duration of at most {LONGEST} (a year) in mode Periodic; write \
                 it as in 1h or 30m, or 0 to compact nothing"
            ),
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
    let mut rules = vec![
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
        gates_on(5, "remove it from feature-gates, or raise spec.version to 3.6"),
        gates_on(6, "correct it, or remove it from feature-gates"),
        gates_on(7, "correct it, or remove it from feature-gates"),
        keeps_checkpoints(),
    ];
    rules.extend(flags::KINDS.iter().filter_map(|(kind, names)| values(*kind, names)));
    rules
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

/// The rule for the features of `feature-gates` on a minor version. The message names the first that is wrong: to `join` all of
/// them is beyond what the API server lets a message cost.
fn gates_on(minor: u32, remedy: &str) -> Rule {
    const AT: &str = "self.etcd.extraFlags";
    let gates = format!("{AT}['feature-gates'].split(',').map(g, g.split('=')[0].trim())");
    let known: Vec<&str> = flags::GATES.iter().filter(|gate| gate.is_on(minor)).map(|gate| gate.name).collect();
    let missing = format!("{gates}.filter(g, !(g in {}))", list(known.iter().copied()));
    let condition = format!(
        "!self.version.startsWith('3.{minor}.') || !has({AT}) || !('feature-gates' in {AT}) || {missing}.size() == 0"
    );
    let holds = "spec.etcd.extraFlags holds";
    let has = format!("etcd 3.{minor} does not have (it has {}); {remedy}", known.join(", "));
    Rule::new("spec", Some(".etcd.extraFlags"), condition, format!("{holds} a feature that {has}"))
        .telling(format!("'{holds} ' + {missing}[0] + ' in feature-gates, which {has}'"))
}

/// etcd does not start where the checkpoints of leases are to be kept and none are made (`Validate` in `server/embed/config.go`).
/// AllAlpha turns both on, but for what is named beside it; 3.5, on the way from which it may be, has no AllAlpha.
fn keeps_checkpoints() -> Rule {
    let is = |gate: &str, truth: [&str; 6]| {
        format!("self.extraFlags['feature-gates'].matches('(^|,) *{gate} *= *({}) *(,|$)')", truth.join("|"))
    };
    let (kept, made) = ("LeaseCheckpointPersist", "LeaseCheckpoint");
    let named = format!("!{} || {}", is(kept, TRUE), is(made, TRUE));
    let with_all = format!("!{} || !{} || {}", is("AllAlpha", TRUE), is(made, FALSE), is(kept, FALSE));
    flag_rule(
        &format!("!('feature-gates' in self.extraFlags) || (({named}) && ({with_all}))"),
        "spec.etcd.extraFlags holds LeaseCheckpointPersist in feature-gates without LeaseCheckpoint, by name or by AllAlpha, \
         and etcd does not start so; add LeaseCheckpoint=true, or LeaseCheckpointPersist=false",
    )
}

/// The rule for the values of the flags of a kind. The message names the first flag that is wrong.
fn values(kind: Kind, names: &[&str]) -> Option<Rule> {
    let each = of_kind(kind, "self.extraFlags[f]")?;
    let condition = format!("self.extraFlags.all(f, !(f in {}) || {each})", list(names.iter().copied()));
    let (what, remedy) = wanted(kind);
    let must = format!("spec.etcd.extraFlags must hold {what} for ");
    let rule = flag_rule(&condition, format!("{must}{}; {remedy}", names.join(", ")));
    let (last, others) = names.split_last()?;
    if others.is_empty() {
        return Some(rule);
    }
    let first = others.iter().rev().try_fold(format!("'{last}'"), |rest, name| {
        let fine = of_kind(kind, &format!("self.extraFlags['{name}']"))?;
        Some(format!("'{name}' in self.extraFlags && !({fine}) ? '{name}' : {rest}"))
    })?;
    Some(rule.telling(format!("'{must}' + ({first}) + '; {remedy}'")))
}

/// The longest time that may be set, a year: who writes more has mistaken the unit.
const LONGEST: &str = "8760h";
/// The units of a time, and how many digits may stand before one: enough for the longest, and few enough that six such
/// numbers are no more than the 292 years that Go and CEL hold. To read more than that is an error, which has no message.
const UNITS: [(u8, &str); 4] = [(4, "h"), (6, "m"), (8, "s"), (12, "(ms|us|ns)")];
/// Go takes a number that begins with 0 for an octal one.
const NUMBER: &str = "^(0|[1-9][0-9]{0,9})$";
/// The host of an origin: a name or an address, in brackets if it is one of IPv6. CEL reads two backslashes as one.
const HOST: &str = "([A-Za-z0-9_]([-A-Za-z0-9_.]*[A-Za-z0-9_])?|\\\\[[0-9A-Fa-f:.]+\\\\])";
/// What Go reads as true, and as false.
const TRUE: [&str; 6] = ["true", "True", "TRUE", "t", "T", "1"];
const FALSE: [&str; 6] = ["false", "False", "FALSE", "f", "F", "0"];

/// Whether a value is a time as etcd reads it, without a sign, in CEL.
fn duration(value: &str) -> String {
    let numbers = UNITS.map(|(digits, unit)| format!("([0-9]{{1,{digits}}}([.][0-9]{{0,9}})?|[.][0-9]{{1,9}}){unit}"));
    format!("({value}.matches('^(0|({}){{1,6}})$') && {})", numbers.join("|"), not_too_long(value))
}

/// Whether what is known to be a time is one that may be set, in CEL.
fn not_too_long(value: &str) -> String {
    format!("duration({value}) <= duration('{LONGEST}')")
}

/// Whether a value is of a kind, in CEL. None: any is.
fn of_kind(kind: Kind, value: &str) -> Option<String> {
    match kind {
        Kind::Number { least: 0, most } => Some(format!("({value}.matches('{NUMBER}') && int({value}) <= {most})")),
        Kind::Number { least, most } => {
            Some(format!("({value}.matches('{NUMBER}') && int({value}) >= {least} && int({value}) <= {most})"))
        }
        Kind::Duration => Some(duration(value)),
        Kind::Period => Some(format!("({} && {value}.matches('[1-9]'))", duration(value))),
        Kind::Switch => Some(format!("{value} in {}", list(TRUE.into_iter().chain(FALSE)))),
        Kind::OneOf(words) => Some(format!("{value} in {}", list(words.iter().copied()))),
        Kind::AnyCase(words) => Some(format!("{value}.matches('(?i)^({})$')", words.join("|"))),
        Kind::Gates => {
            let gate = format!(" *[A-Za-z0-9]+ *= *({}|{}) *", TRUE.join("|"), FALSE.join("|"));
            Some(format!("{value}.matches('^{gate}(,{gate})*$')"))
        }
        Kind::Origins => {
            let origin = format!(" *https?://{HOST}:[1-9][0-9]{{0,4}} *");
            Some(format!("{value}.matches('^([*]|{origin}(,{origin})*)$')"))
        }
        Kind::Token => Some(format!("{value} == 'simple'")),
        Kind::Text => None,
    }
}

/// What has to be there, and the remedy.
fn wanted(kind: Kind) -> (String, &'static str) {
    match kind {
        Kind::Number { least, most } => {
            (format!("a whole number from {least} to {most}"), "write it in digits, as in \"1000\"")
        }
        Kind::Duration => {
            (format!("a duration of at most {LONGEST} (a year)"), "write it as in 30s or 1h30m, or \"0\"")
        }
        Kind::Period => {
            (format!("a duration above 0 and of at most {LONGEST} (a year)"), "write it as in 30s or 1h30m")
        }
        Kind::Switch => ("true or false".into(), "write it in quotes, as in \"true\""),
        Kind::OneOf(words) | Kind::AnyCase(words) => (format!("one of {}", words.join(", ")), "choose one of them"),
        Kind::Gates => ("names of features with true or false".into(), "write it as in InitialCorruptCheck=true"),
        Kind::Origins => (
            "* or origins, each with http or https, a host and a port, without a path,".into(),
            "write it as in https://app.example.com:443,http://localhost:8080",
        ),
        Kind::Token => (
            "simple".into(),
            "write that or remove it, because jwt reads keys from files, and no field of the spec puts any into a pod",
        ),
        Kind::Text => ("a text".into(), "correct it"),
    }
}

/// A list of words in CEL.
fn list<'a>(words: impl Iterator<Item = &'a str>) -> String {
    let quoted: Vec<String> = words.map(|word| format!("'{word}'")).collect();
    format!("[{}]", quoted.join(", "))
}
