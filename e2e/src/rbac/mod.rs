//! Whether the operator's rights are those that it uses: what its roles grant, what it called, and how the two differ.
//!
//! All here is computed from what it is given: no file may be read here and nobody asked. The words are Kubernetes'
//! own: a right is an API group, a resource or subresource, and a verb.

mod calls;
mod comparison;
mod grants;

use std::fmt;

pub use calls::Calls;
pub use comparison::Comparison;
pub use grants::{Grant, GrantError, granted};

/// The operator's account, as the API server names it.
pub const ACCOUNT: &str = "system:serviceaccount:quorate-system:quorate";

/// One verb on one resource.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    /// The API group; empty for the core.
    pub group: String,
    /// The resource, with its subresource as in `pods/resize`.
    pub resource: String,
    /// The verb.
    pub verb: String,
}

impl Right {
    /// The resource as kubectl names it, as in `jobs.batch` or `etcdclusters.quorate.dev/status`.
    pub fn target(&self) -> String {
        let (resource, part) =
            self.resource.split_once('/').map_or((&*self.resource, None), |(of, part)| (of, Some(part)));
        let group = if self.group.is_empty() { String::new() } else { format!(".{}", self.group) };
        let part = part.map(|part| format!("/{part}")).unwrap_or_default();
        format!("{resource}{group}{part}")
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.target())
    }
}

/// A call: what RBAC decides about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Call {
    /// The right that it takes.
    pub right: Right,
    /// The namespace; empty outside of all.
    pub namespace: String,
    /// The object's name; empty where the call names none.
    pub name: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_named_as_kubectl_names_them() {
        let right = |group: &str, resource: &str, verb: &str| {
            Right { group: group.into(), resource: resource.into(), verb: verb.into() }.to_string()
        };
        assert_eq!(right("", "pods", "get"), "get pods");
        assert_eq!(right("", "pods/resize", "patch"), "patch pods/resize");
        assert_eq!(right("quorate.dev", "etcdclusters/status", "update"), "update etcdclusters.quorate.dev/status");
    }
}
