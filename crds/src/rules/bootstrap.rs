//! The rules for what a cluster begins with: what belongs together, and that it is not changed later.

use super::{DNS_NAME, Rule, backup};

/// As `quorate-agent` takes it.
const LINEAGE: &str = "^[A-Za-z0-9][-A-Za-z0-9_.]*$";
/// As `quorate-agent` makes it.
const GENERATION: &str = "^[0-9]{8}T[0-9]{6}Z-[0-9a-f]{16}$";
/// RFC 3339.
const TIME: &str = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})$";

pub(super) fn values() -> Vec<Rule> {
    const AT: &str = "spec.bootstrap.restore";
    let mut rules = vec![
        Rule::new(
            AT,
            Some(".backup"),
            "has(self.backup) != has(self.store)",
            "spec.bootstrap.restore.backup or spec.bootstrap.restore.store must be set, and not both; name an EtcdBackup, or \
             describe the store",
        ),
        Rule::new(
            AT,
            Some(".backup"),
            format!("!has(self.backup) || self.backup.name.matches('{DNS_NAME}')"),
            "spec.bootstrap.restore.backup.name must be the name of an EtcdBackup, in lower case; correct the name",
        ),
        Rule::new(
            AT,
            Some(".lineage"),
            "has(self.lineage) == has(self.store)",
            "spec.bootstrap.restore.lineage goes with spec.bootstrap.restore.store, which may hold backups of several \
             clusters; set it to the UID of the EtcdCluster whose backup it is, or remove it",
        ),
        Rule::new(
            AT,
            Some(".lineage"),
            format!("!has(self.lineage) || self.lineage.matches('{LINEAGE}')"),
            "spec.bootstrap.restore.lineage must be a UID or the name that was given, of letters, digits, dashes, dots and \
             underscores; correct it, quorate-agent list shows it",
        ),
        Rule::new(
            AT,
            Some(".generation"),
            "!has(self.backup) || (!has(self.generation) && !has(self.revision) && !has(self.time))",
            "spec.bootstrap.restore.generation, revision and time go with spec.bootstrap.restore.store, because an EtcdBackup \
             is one state; remove them",
        ),
        Rule::new(
            AT,
            Some(".generation"),
            format!("!has(self.generation) || self.generation.matches('{GENERATION}')"),
            "spec.bootstrap.restore.generation must be as quorate-agent list shows it, such as \
             20261121T142536Z-3f9a0c1d22e84b57; correct it, or remove it",
        ),
        Rule::new(
            AT,
            Some(".revision"),
            "!has(self.revision) || !has(self.time)",
            "spec.bootstrap.restore.revision can't be set with spec.bootstrap.restore.time; remove one of the two",
        ),
        Rule::new(
            AT,
            Some(".revision"),
            "!has(self.revision) || self.revision >= 1",
            "spec.bootstrap.restore.revision must be 1 or more; correct it, or remove it for the newest state",
        ),
        Rule::new(
            AT,
            Some(".time"),
            format!("!has(self.time) || self.time.matches('{TIME}')"),
            "spec.bootstrap.restore.time must be a time such as 2026-11-21T14:25:36Z; correct it, or remove it for the newest \
             state",
        ),
    ];
    rules.extend(backup::store("spec.bootstrap.restore.store", "spec.bootstrap.restore.store"));
    rules
}

pub(super) fn changes() -> Vec<Rule> {
    vec![Rule::new(
        "spec",
        Some(".bootstrap"),
        "has(self.bootstrap) == has(oldSelf.bootstrap) && (!has(self.bootstrap) || self.bootstrap == oldSelf.bootstrap)",
        "spec.bootstrap can't be changed, because a cluster begins once; set it back, or create another EtcdCluster",
    )]
}
