//! The rules for the continuous backup.

use super::{Rule, backup, is_amount};

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
            format!(
                "{} && quantity(self.spillLimit).compareTo(quantity('64Mi')) >= 0 \
                 && quantity(self.spillLimit).compareTo(quantity('1Ti')) <= 0",
                is_amount("self.spillLimit")
            ),
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
    rules.push(schedule());
    rules.extend(backup::store("spec.backup.store", "spec.backup.store"));
    rules
}

/// Stricter than Kubernetes is with a CronJob, so that it never refuses one that was let in here.
fn schedule() -> Rule {
    let numbers = ["[0-5]?[0-9]", "1?[0-9]|2[0-3]", "[1-9]|[12][0-9]|3[01]", "[1-9]|1[0-2]", "[0-6]"];
    let fields = numbers.map(|number| format!("([*](/[1-9][0-9]?)?|({number})(,({number}))*)"));
    Rule::new(
        "spec.backup.verify",
        Some(".schedule"),
        format!("self.schedule.matches('^{}$')", fields.join(" ")),
        "spec.backup.verify.schedule must be minute, hour, day of the month (1 to 31), month (1 to 12) and day of the week \
         (0 to 6, 0 is Sunday), each a number, numbers with commas between them, * or */n; write it as in 30 3 * * *",
    )
}
