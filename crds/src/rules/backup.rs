//! The rules of EtcdBackup: what a store must name, and that nothing is changed later.

use super::{DNS_NAME, Rule};

/// Every rule of the spec of EtcdBackup, in the order of the API reference.
pub fn backup() -> Vec<Rule> {
    [spec(), store("EtcdBackup.spec.store", "spec.store")].concat()
}

fn spec() -> Vec<Rule> {
    const AT: &str = "EtcdBackup.spec";
    vec![
        Rule::new(
            AT,
            None,
            "self.cluster == oldSelf.cluster && self.store == oldSelf.store && \
             self.timeoutMinutes == oldSelf.timeoutMinutes && has(self.ttlMinutes) == has(oldSelf.ttlMinutes) && \
             (!has(self.ttlMinutes) || self.ttlMinutes == oldSelf.ttlMinutes)",
            "spec of an EtcdBackup can't be changed but for spec.deletionPolicy, because it is taken once; create another \
             EtcdBackup",
        ),
        Rule::new(
            AT,
            Some(".cluster"),
            "self.cluster.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            "spec.cluster must be the name of an EtcdCluster of this namespace, in lower case; correct the name",
        ),
        Rule::new(
            AT,
            Some(".timeoutMinutes"),
            "self.timeoutMinutes >= 1 && self.timeoutMinutes <= 10080",
            "spec.timeoutMinutes must be from 1 to 10080 (a week); remove it for the default of an hour",
        ),
        Rule::new(
            AT,
            Some(".ttlMinutes"),
            "!has(self.ttlMinutes) || (self.ttlMinutes >= 1 && self.ttlMinutes <= 5256000)",
            "spec.ttlMinutes must be from 1 to 5256000 (ten years); remove it to keep the object",
        ),
    ]
}

/// The rules of a store that stands there; messages call it by its path in the object, `named`.
pub(super) fn store(at: &'static str, named: &str) -> Vec<Rule> {
    vec![
        Rule::new(
            at,
            Some(".address"),
            "has(self.address) != has(self.volumeClaim)",
            format!(
                "{named}.address or {named}.volumeClaim must be set, and not both; write {named}.address as \
                 s3://bucket/prefix, or name the claim in {named}.volumeClaim.name"
            ),
        ),
        Rule::new(
            at,
            Some(".address"),
            "!has(self.address) || self.address.matches('^(s3|gs)://[^/?#@:]+(/[^?#]*)?$') || \
             self.address.matches('^azure://[^/?#@:]+/[^/?#]+(/[^?#]*)?$')",
            format!(
                "{named}.address must be s3://bucket/prefix, gs://bucket/prefix or azure://account/container/prefix, without \
                 credentials and port; put credentials into the Secret that {named}.credentials names, and an endpoint into \
                 {named}.options"
            ),
        ),
        Rule::new(
            at,
            Some(".options"),
            "!has(self.options) || self.options.all(k, k.matches('^[a-z]([-a-z]*[a-z])?$') && \
             self.options[k].matches('^[^,\\n]+$'))",
            format!(
                "{named}.options must have names such as endpoint or region, and values without commas and line breaks; \
                 correct the option"
            ),
        ),
        Rule::new(
            at,
            Some(".volumeClaim"),
            format!(
                "!has(self.volumeClaim) || (self.volumeClaim.name.matches('{DNS_NAME}') && !has(self.credentials) && \
                 !has(self.serviceAccountName) && !has(self.options))"
            ),
            format!(
                "{named}.volumeClaim must be the name of a claim, in lower case, and stand alone: a volume has no options, \
                 credentials or account; remove the other fields"
            ),
        ),
        Rule::new(
            at,
            Some(".credentials"),
            format!("!has(self.credentials) || self.credentials.name.matches('{DNS_NAME}')"),
            format!("{named}.credentials.name must be the name of a Secret, in lower case; correct the name"),
        ),
        Rule::new(
            at,
            Some(".encryption"),
            format!("!has(self.encryption) || self.encryption.secretName.matches('{DNS_NAME}')"),
            format!("{named}.encryption.secretName must be the name of a Secret, in lower case; correct the name"),
        ),
        Rule::new(
            at,
            Some(".serviceAccountName"),
            format!("!has(self.serviceAccountName) || self.serviceAccountName.matches('{DNS_NAME}')"),
            format!("{named}.serviceAccountName must be the name of a ServiceAccount, in lower case; correct the name"),
        ),
    ]
}
