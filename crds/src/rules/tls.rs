//! The rules for TLS: what belongs together, and what can't be changed in place.

use super::{DNS_NAME, Rule};

/// A DNS name, which may begin with a wildcard, or an IPv4 address.
const NAME: &str = r"^([*][.])?[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
/// An IPv6 address, as far as a pattern can tell: groups of up to four digits, of which one gap stands for some.
const IPV6: &str =
    "^(([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}|([0-9a-f]{1,4}(:[0-9a-f]{1,4}){0,6})?::([0-9a-f]{1,4}(:[0-9a-f]{1,4}){0,6})?)$";

pub(super) fn values() -> Vec<Rule> {
    const AT: &str = "spec.tls";
    let named = |which: &str| format!("self.secrets.{which}.name.matches('{DNS_NAME}')");
    vec![
        Rule::new(
            AT,
            Some(".secrets"),
            "(self.mode == 'Secrets') == has(self.secrets)",
            "spec.tls.secrets goes with spec.tls.mode Secrets and with no other; name the Secrets peer, server and client, \
             or remove them",
        ),
        Rule::new(
            AT,
            Some(".secrets"),
            format!("!has(self.secrets) || ({} && {} && {})", named("peer"), named("server"), named("client")),
            "spec.tls.secrets must hold names of Secrets, in lower case; correct the name",
        ),
        Rule::new(
            AT,
            Some(".lifetimeMinutes"),
            "self.lifetimeMinutes >= 5 && self.lifetimeMinutes <= 5256000",
            "spec.tls.lifetimeMinutes must be from 5 (a renewal needs a minute or two to reach the members) to 5256000 \
             (ten years); remove it for the default of 90 days",
        ),
        Rule::new(
            AT,
            Some(".extraNames"),
            format!("!has(self.extraNames) || self.extraNames.all(n, n.matches('{NAME}') || n.matches('{IPV6}'))"),
            "spec.tls.extraNames must hold DNS names such as etcd.example.com, or IP addresses, in lower case and without \
             scheme or port; correct the name",
        ),
        Rule::new(
            AT,
            Some(".extraNames"),
            "self.mode == 'Issued' || !has(self.extraNames) || size(self.extraNames) == 0",
            "spec.tls.extraNames goes with spec.tls.mode Issued; put the names into the certificate of your own Secret, or \
             remove them",
        ),
    ]
}

pub(super) fn changes() -> Vec<Rule> {
    const AT: &str = "spec";
    let same = |which: &str| format!("self.tls.secrets.{which}.name == oldSelf.tls.secrets.{which}.name");
    vec![
        Rule::new(
            AT,
            Some(".tls.mode"),
            "self.tls.mode == oldSelf.tls.mode",
            "spec.tls.mode can't be changed, because members know each other by http or https addresses and read the \
             authorities that they trust only once; set it back, or create a new EtcdCluster and move the data",
        )
        .telling(
            "'spec.tls.mode can\\'t be changed, because members know each other by http or https addresses and read the \
             authorities that they trust only once; set it back to ' + oldSelf.tls.mode + ', or create a new EtcdCluster \
             and move the data'",
        ),
        Rule::new(
            AT,
            Some(".tls.secrets"),
            format!(
                "!has(self.tls.secrets) || !has(oldSelf.tls.secrets) || ({} && {} && {})",
                same("peer"),
                same("server"),
                same("client")
            ),
            "spec.tls.secrets can't name other Secrets later; put new certificates into the Secrets that are named, which \
             needs no restart",
        ),
    ]
}
