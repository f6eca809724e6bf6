//! The rules for volumes: what they may be, and what may not change once they hold data.

use super::{DNS_NAME, Rule, is_amount, is_no_amount};

pub(super) fn values() -> Vec<Rule> {
    const AT: &str = "spec.storage";
    vec![
        Rule::new(
            AT,
            Some(".size"),
            format!(
                "{} && quantity(self.size).compareTo(quantity('1Gi')) >= 0 \
                 && quantity(self.size).compareTo(quantity('64Ti')) <= 0",
                is_amount("self.size")
            ),
            "spec.storage.size must be a quantity from 1Gi to 64Ti; write it as in 8Gi",
        ),
        Rule::new(
            AT,
            Some(".storageClassName"),
            format!(
                "!has(self.storageClassName) || self.storageClassName == '' || self.storageClassName.matches('{DNS_NAME}')"
            ),
            "spec.storage.storageClassName must be the name of a StorageClass, in lower case; correct it, or leave it \
             out for the default class",
        ),
        Rule::new(
            AT,
            Some(".storageClassName"),
            "!self.ephemeral || !has(self.storageClassName)",
            "spec.storage.storageClassName can't be set with spec.storage.ephemeral, which uses no volume claims; remove \
             one of the two",
        ),
        Rule::new(
            AT,
            Some(".retention"),
            "!self.ephemeral || !has(self.retention)",
            "spec.storage.retention can't be set with spec.storage.ephemeral, which keeps nothing; remove one of the two",
        ),
    ]
}

pub(super) fn changes() -> Vec<Rule> {
    const AT: &str = "spec";
    const COMPARED: &str = "quantity(self.storage.size).compareTo(quantity(oldSelf.storage.size))";
    let sizes = ["self.storage.size", "oldSelf.storage.size"].map(is_no_amount).join(" || ");
    vec![
        Rule::new(
            AT,
            Some(".storage.size"),
            format!("{sizes} || {COMPARED} >= 0"),
            "spec.storage.size can only grow, because volumes can't shrink; set it back",
        )
        .telling(
            "'spec.storage.size can only grow, because volumes can\\'t shrink; set it to ' + oldSelf.storage.size + ' or more'",
        ),
        Rule::new(
            AT,
            Some(".storage.size"),
            format!("!self.storage.ephemeral || {sizes} || {COMPARED} <= 0"),
            "spec.storage.size can't be changed with spec.storage.ephemeral, because the limit of an emptyDir is fixed; \
             set it back, or create a new EtcdCluster",
        ),
        Rule::new(
            AT,
            Some(".storage.ephemeral"),
            "self.storage.ephemeral == oldSelf.storage.ephemeral",
            "spec.storage.ephemeral can't be changed; set it back, or create a new EtcdCluster",
        ),
        Rule::new(
            AT,
            Some(".storage.storageClassName"),
            "has(self.storage.storageClassName) == has(oldSelf.storage.storageClassName) && \
             (!has(self.storage.storageClassName) || self.storage.storageClassName == oldSelf.storage.storageClassName)",
            "spec.storage.storageClassName can't be changed; set it back, or create a new EtcdCluster",
        ),
    ]
}
