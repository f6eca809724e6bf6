//! What the operator's roles grant, from the roles and bindings as the API server has them. Refuses what can't be told
//! apart call by call: wildcards, and rights to paths.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{ACCOUNT, Call, Right};

/// A right that a role grants, and where.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Grant {
    /// The right.
    pub right: Right,
    /// The objects to which it is limited; none for every object.
    pub names: BTreeSet<String>,
    /// The namespace to which it is limited.
    pub namespace: Option<String>,
}

impl Grant {
    /// Whether it allows this call.
    pub fn covers(&self, call: &Call) -> bool {
        let Self { right, names, namespace } = self;
        *right == call.right
            && (names.is_empty() || names.contains(&call.name))
            && namespace.as_ref().is_none_or(|namespace| *namespace == call.namespace)
    }

    /// On what, and where.
    pub fn target(&self) -> String {
        let names: Vec<_> = self.names.iter().map(String::as_str).collect();
        let names = if names.is_empty() { String::new() } else { format!(" ({})", names.join(", ")) };
        let namespace = self.namespace.as_ref().map(|namespace| format!(" in {namespace}")).unwrap_or_default();
        format!("{}{names}{namespace}", self.right.target())
    }
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.right.verb, self.target())
    }
}

/// Why it can't be said what is granted.
#[derive(Debug, thiserror::Error)]
pub enum GrantError {
    /// An object that is not what its kind says.
    #[error("failed to read a {kind} of the cluster")]
    Unreadable {
        /// What it says it is.
        kind: String,
        /// Why not.
        source: serde_json::Error,
    },
    /// An object of another kind.
    #[error("failed to find grants in a `{0}`: only roles and their bindings have any")]
    Kind(String),
    /// The operator is not installed.
    #[error("failed to find a role of {ACCOUNT}: no binding names it")]
    Unbound,
    /// A binding leads nowhere.
    #[error("failed to find the {kind} {name} that a binding of {ACCOUNT} names")]
    NoRole {
        /// Its kind.
        kind: String,
        /// Its name.
        name: String,
    },
    /// Who has every right of a kind has some that it never uses.
    #[error("failed to list the rights of {role}: `{pattern}` stands for any number of them")]
    Wildcard {
        /// The role.
        role: String,
        /// What it says.
        pattern: String,
    },
    /// The operator needs no path, so none is understood here.
    #[error("failed to list the rights of {role}: it grants a path, {path}")]
    Path {
        /// The role.
        role: String,
        /// The path.
        path: String,
    },
}

/// What these roles and bindings grant the operator's account by name. What every account is granted is not its own.
pub fn granted(objects: Vec<Value>) -> Result<BTreeSet<Grant>, GrantError> {
    let Roles { rules, bindings } = Roles::read(objects)?;
    if bindings.is_empty() {
        return Err(GrantError::Unbound);
    }
    let mut grants = BTreeSet::new();
    for Binding { role, namespace } in bindings {
        let home = if role.kind == "Role" { namespace.clone() } else { None };
        let found = rules.get(&(home, role.name.clone()));
        let found = found.ok_or_else(|| GrantError::NoRole { kind: role.kind.clone(), name: role.name.clone() })?;
        for rule in found {
            grants.extend(grants_of(rule, &role.name, namespace.as_deref())?);
        }
    }
    Ok(grants)
}

/// What a role is bound to.
struct Binding {
    role: RoleRef,
    /// Where it holds; everywhere when there is none.
    namespace: Option<String>,
}

/// The rules of all roles, by the namespace and the name of each; and the bindings of the operator's account.
#[derive(Default)]
struct Roles {
    rules: BTreeMap<(Option<String>, String), Vec<PolicyRule>>,
    bindings: Vec<Binding>,
}

impl Roles {
    fn read(objects: Vec<Value>) -> Result<Self, GrantError> {
        let mut roles = Self::default();
        for object in objects {
            let kind = object["kind"].as_str().unwrap_or_default().to_owned();
            match kind.as_str() {
                "ClusterRole" => {
                    let ClusterRole { metadata, rules, .. } = typed(kind, object)?;
                    roles.rules.insert((None, metadata.name.unwrap_or_default()), rules.unwrap_or_default());
                }
                "Role" => {
                    let Role { metadata, rules } = typed(kind, object)?;
                    let home = Some(metadata.namespace.unwrap_or_default());
                    roles.rules.insert((home, metadata.name.unwrap_or_default()), rules.unwrap_or_default());
                }
                "ClusterRoleBinding" => {
                    let ClusterRoleBinding { role_ref, subjects, .. } = typed(kind, object)?;
                    let bound = names_the_operator(subjects.as_deref());
                    roles.bindings.extend(bound.then_some(Binding { role: role_ref, namespace: None }));
                }
                "RoleBinding" => {
                    let RoleBinding { metadata, role_ref, subjects } = typed(kind, object)?;
                    let namespace = Some(metadata.namespace.unwrap_or_default());
                    let bound = names_the_operator(subjects.as_deref());
                    roles.bindings.extend(bound.then_some(Binding { role: role_ref, namespace }));
                }
                _ => return Err(GrantError::Kind(kind)),
            }
        }
        Ok(roles)
    }
}

fn typed<K: DeserializeOwned>(kind: String, object: Value) -> Result<K, GrantError> {
    serde_json::from_value(object).map_err(|source| GrantError::Unreadable { kind, source })
}

fn names_the_operator(subjects: Option<&[Subject]>) -> bool {
    subjects.unwrap_or_default().iter().any(|subject| {
        let namespace = subject.namespace.as_deref().unwrap_or_default();
        let account = format!("system:serviceaccount:{namespace}:{}", subject.name);
        match subject.kind.as_str() {
            "ServiceAccount" => account == ACCOUNT,
            "User" => subject.name == ACCOUNT,
            _ => false,
        }
    })
}

/// Each verb on each resource that a rule names.
fn grants_of(rule: &PolicyRule, of_role: &str, namespace: Option<&str>) -> Result<Vec<Grant>, GrantError> {
    let PolicyRule { api_groups, non_resource_urls, resource_names, resources, verbs } = rule;
    let all = |list: &Option<Vec<String>>| list.clone().unwrap_or_default();
    if let Some(path) = all(non_resource_urls).into_iter().next() {
        return Err(GrantError::Path { role: of_role.into(), path });
    }
    let (groups, resources) = (all(api_groups), all(resources));
    // An object's name is never a pattern.
    if let Some(pattern) = groups.iter().chain(&resources).chain(verbs).find(|word| word.contains('*')) {
        return Err(GrantError::Wildcard { role: of_role.into(), pattern: pattern.clone() });
    }
    let mut grants = vec![];
    for group in &groups {
        for resource in &resources {
            grants.extend(verbs.iter().map(|verb| Grant {
                right: Right { group: group.clone(), resource: resource.clone(), verb: verb.clone() },
                names: all(resource_names).into_iter().collect(),
                namespace: namespace.map(ToOwned::to_owned),
            }));
        }
    }
    Ok(grants)
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    /// The roles of deploy/base as the API server has them: kustomize puts those of a namespace into quorate-system.
    pub fn manifests() -> Vec<Value> {
        let base = crate::workspace::root().join("deploy/base");
        let files = ["cluster-role", "cluster-role-binding", "role", "role-binding", "user-roles"];
        let texts = files.map(|file| std::fs::read_to_string(base.join(file).with_extension("yaml")).unwrap());
        let objects = texts.iter().flat_map(|text| serde_saphyr::from_multiple::<Value>(text).unwrap());
        let mut objects: Vec<Value> = objects.collect();
        for object in &mut objects {
            if matches!(object["kind"].as_str(), Some("Role" | "RoleBinding")) {
                object["metadata"]["namespace"] = json!("quorate-system");
            }
        }
        objects
    }

    fn role(rules: &Value) -> Vec<Value> {
        let api = "rbac.authorization.k8s.io/v1";
        let subject = json!({ "kind": "ServiceAccount", "name": "quorate", "namespace": "quorate-system" });
        let of = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r" });
        vec![
            json!({ "apiVersion": api, "kind": "ClusterRole", "metadata": { "name": "r" }, "rules": rules }),
            json!({ "apiVersion": api, "kind": "ClusterRoleBinding", "metadata": { "name": "b" }, "roleRef": of,
                    "subjects": [subject] }),
        ]
    }

    fn names(objects: Vec<Value>) -> Vec<String> {
        granted(objects).unwrap().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_is_installed_can_be_listed_and_has_no_wildcard() {
        let names = names(manifests());
        for expected in [
            "patch pods/resize",
            "update etcdclusters.quorate.dev/status",
            "patch customresourcedefinitions.apiextensions.k8s.io (etcdbackups.quorate.dev, etcdclusters.quorate.dev)",
            "create leases.coordination.k8s.io in quorate-system",
            "update leases.coordination.k8s.io (quorate) in quorate-system",
        ] {
            assert!(names.iter().any(|name| name == expected), "{expected} is not among {names:#?}");
        }
        // The roles of users are nobody's here.
        assert!(!names.iter().any(|name| name.contains("deletecollection")), "{names:#?}");
    }

    #[test]
    fn a_rule_grants_each_verb_on_each_resource() {
        let rules = json!([{ "apiGroups": ["", "apps"], "resources": ["a", "b"], "verbs": ["get", "list"] }]);
        let expected = ["get a", "list a", "get b", "list b", "get a.apps", "list a.apps", "get b.apps", "list b.apps"];
        assert_eq!(names(role(&rules)), expected);
    }

    #[test]
    fn wildcards_and_paths_are_refused() {
        let refusal = |rule: Value| granted(role(&json!([rule]))).unwrap_err().to_string();
        let rule = |group: &str, resource: &str, verb: &str| {
            refusal(json!({ "apiGroups": [group], "resources": [resource], "verbs": [verb] }))
        };
        for refused in
            [rule("*", "pods", "get"), rule("", "*", "get"), rule("", "*/status", "get"), rule("", "pods", "*")]
        {
            assert!(refused.starts_with("failed to list the rights of r: `*"), "{refused}");
        }
        let path = refusal(json!({ "nonResourceURLs": ["/metrics"], "verbs": ["get"] }));
        assert_eq!(path, "failed to list the rights of r: it grants a path, /metrics");
    }

    #[test]
    fn without_a_role_nothing_is_said() {
        let mut objects = role(&json!([]));
        let binding = objects.pop().unwrap();
        assert!(matches!(granted(objects), Err(GrantError::Unbound)));
        assert!(matches!(granted(vec![binding]), Err(GrantError::NoRole { .. })));
        assert!(matches!(granted(vec![json!({ "kind": "Pod" })]), Err(GrantError::Kind(_))));
    }

    #[test]
    fn a_grant_holds_for_its_names_and_its_namespace() {
        let right = Right { group: String::new(), resource: "pods".into(), verb: "get".into() };
        let call =
            |namespace: &str, name: &str| Call { right: right.clone(), namespace: namespace.into(), name: name.into() };
        let everywhere = Grant { right: right.clone(), names: BTreeSet::new(), namespace: None };
        assert!(everywhere.covers(&call("a", "x")) && everywhere.covers(&call("", "")));
        let named = Grant { names: BTreeSet::from(["x".into()]), ..everywhere.clone() };
        assert!(named.covers(&call("a", "x")) && !named.covers(&call("a", "y")) && !named.covers(&call("a", "")));
        let here = Grant { namespace: Some("a".into()), ..everywhere };
        assert!(here.covers(&call("a", "x")) && !here.covers(&call("b", "x")));
    }
}
