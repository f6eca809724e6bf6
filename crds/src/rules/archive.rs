//! The rules for the continuous backup.

use super::{Rule, backup};

pub(super) fn values() -> Vec<Rule> {
    const AT: &str = "spec.backup";
    let mut rules = vec![
        Rule::new(
            AT,
            Some(".store"),
            "!has(self.store.volumeClaim)",
            "spec.backup.store.volumeClaim can't be used, because every member writes to the store, and not every node can \
             mount the claim; set spec.backup.store.address",
        ),
        Rule::new(
            AT,
            Some(".flushIntervalSeconds"),
            "self.flushIntervalSeconds >= 1 && self.flushIntervalSeconds <= 3600",
            "spec.backup.flushIntervalSeconds must be from 1 to 3600; remove it for the default of 10",
        ),
        Rule::new(
            AT,
            Some(".fullIntervalMinutes"),
            "self.fullIntervalMinutes >= 10 && self.fullIntervalMinutes <= 44640",
            "spec.backup.fullIntervalMinutes must be from 10 to 44640 (a month); remove it for the default of a day",
        ),
        Rule::new(
            AT,
            Some(".spillLimit"),
            "isQuantity(self.spillLimit) && quantity(self.spillLimit).compareTo(quantity('64Mi')) >= 0 \
             && quantity(self.spillLimit).compareTo(quantity('1Ti')) <= 0",
            "spec.backup.spillLimit must be a quantity from 64Mi to 1Ti; write it as in 1Gi",
        ),
        Rule::new(
            "spec.backup.retention",
            None,
            "has(self.generations) || has(self.minutes)",
            "spec.backup.retention needs generations or minutes; set one, or remove spec.backup.retention to keep all",
        ),
        Rule::new(
            "spec.backup.retention",
            Some(".generations"),
            "!has(self.generations) || (self.generations >= 1 && self.generations <= 10000)",
            "spec.backup.retention.generations must be from 1 to 10000; correct it",
        ),
        Rule::new(
            "spec.backup.retention",
            Some(".minutes"),
            "!has(self.minutes) || (self.minutes >= 1 && self.minutes <= 5256000)",
            "spec.backup.retention.minutes must be from 1 to 5256000 (ten years); correct it",
        ),
    ];
    rules.extend(backup::store("spec.backup.store", "spec.backup.store"));
    rules
}
