//! The CEL rules of the spec: what the API server refuses, and what it then tells the user. No rule reads the status.
//!
//! A rule that compares with the old object stands on `spec`, not on its field: removing the field must not get round it.
//! The API server asks no rule about a part of the spec that an update leaves as it was, so a rule that is tightened
//! later blocks no status and no finalizer.

mod archive;
mod backup;
mod bootstrap;
mod etcd;
mod pods;
mod storage;
mod tls;
mod version;

pub use backup::backup;
pub use version::{DOWN_FROM, OLDEST};

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The path of the value that `self` stands for.
    pub at: &'static str,
    /// The field that the error names, from there.
    pub field: Option<&'static str>,
    /// The condition that must hold.
    pub cel: String,
    /// What is wrong and what to do; names the field.
    pub message: String,
    /// A more precise message, with values in it; the message above stands in when it can't be built.
    pub message_expression: Option<String>,
}

impl Rule {
    fn new(at: &'static str, field: Option<&'static str>, cel: impl Into<String>, message: impl Into<String>) -> Self {
        Self { at, field, cel: cel.into(), message: message.into(), message_expression: None }
    }

    fn telling(mut self, expression: impl Into<String>) -> Self {
        self.message_expression = Some(expression.into());
        self
    }
}

/// The name of an object: a DNS subdomain.
const DNS_NAME: &str = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$";
/// A label or annotation key: an optional prefix and a name.
const QUALIFIED_NAME: &str = "^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?\
                              [A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$";
/// The value of a label.
const LABEL_VALUE: &str = "^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$";

/// An exponent of three digits or more. Kubernetes reads `1e-999999999`, and compares `1e999999999` with anything, by a number
/// of so many digits: that takes the API server minutes and gigabytes (`ParseQuantity` and `Cmp` in apimachinery's
/// `pkg/api/resource/quantity.go`; kubernetes #131063, #141306). So this is asked before either.
const LONG_EXPONENT: &str = "[eE].?[0-9]{3}";

/// Whether a string is a quantity that Kubernetes can reckon with.
fn is_amount(text: &str) -> String {
    format!("!{text}.matches('{LONG_EXPONENT}') && isQuantity({text})")
}

/// Whether it is not.
fn is_no_amount(text: &str) -> String {
    format!("!({})", is_amount(text))
}

/// Every rule of the spec of EtcdCluster, in the order of the API reference.
pub fn all() -> Vec<Rule> {
    [
        version::replicas(),
        version::version(),
        version::steps(),
        pods::image(),
        storage::values(),
        storage::changes(),
        tls::values(),
        tls::changes(),
        etcd::settings(),
        etcd::extra_flags(),
        pods::resources(),
        pods::scheduling(),
        pods::service(),
        archive::values(),
        bootstrap::values(),
        bootstrap::changes(),
    ]
    .concat()
}
