//! The rules for what Kubernetes is told of pods and Services: image, resources, scheduling, client Service.

use super::{DNS_NAME, LABEL_VALUE, QUALIFIED_NAME, Rule, is_no_amount};

pub(super) fn image() -> Vec<Rule> {
    const AT: &str = "spec.image";
    vec![
        Rule::new(
            AT,
            Some(".repository"),
            "!self.repository.contains('@') && !self.repository.matches(':[^/]*$')",
            "spec.image.repository must not hold a tag or digest; put it into spec.image.tag, or leave the tag out to \
             follow spec.version",
        ),
        Rule::new(
            AT,
            Some(".repository"),
            "self.repository.matches('^[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*(@.*|:[^/]*)?$')",
            "spec.image.repository must be a name such as quay.io/coreos/etcd, in lower case and without a scheme like \
             https://; correct it",
        ),
        Rule::new(
            AT,
            Some(".tag"),
            "!has(self.tag) || self.tag.matches('^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}(@sha256:[a-f0-9]{64})?$')",
            "spec.image.tag must be a tag such as v3.6.16, which may be followed by @sha256: and a digest; correct it",
        ),
        Rule::new(
            AT,
            Some(".pullSecrets"),
            format!("!has(self.pullSecrets) || self.pullSecrets.all(s, s.name.matches('{DNS_NAME}'))"),
            "spec.image.pullSecrets must hold names of Secrets, in lower case; correct the name",
        ),
    ]
}

/// A resource of which Kubernetes takes as much in the request as in the limit only: one of a domain of its own, or large
/// pages.
const NOT_SHARED: &str = "(k.startsWith('hugepages-') || (k.contains('/') && !k.contains('kubernetes.io/')))";

/// Those of which the limit may be above the request.
const SHARED: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

/// A rule for each, since all in one would cost more than one may.
fn requests_within_limits() -> impl Iterator<Item = Rule> {
    SHARED.into_iter().map(|name| {
        let [request, limit] = ["requests", "limits"].map(|field| format!("string(self.{field}['{name}'])"));
        Rule::new(
            "spec.resources",
            Some(".requests"),
            format!(
                "!has(self.requests) || !has(self.limits) || !('{name}' in self.requests) || !('{name}' in self.limits) || \
                 {} || {} || quantity({request}).compareTo(quantity({limit})) <= 0",
                is_no_amount(&request),
                is_no_amount(&limit)
            ),
            format!(
                "spec.resources.requests: {name} must not be above spec.resources.limits; lower the request or raise the limit"
            ),
        )
    })
}

pub(super) fn resources() -> Vec<Rule> {
    const AT: &str = "spec.resources";
    let names = |field: &str| {
        format!(
            "!has(self.{field}) || self.{field}.all(k, k in ['cpu', 'memory', 'ephemeral-storage'] || \
             k.matches('^hugepages-[1-9][0-9]*[KMG]i$') || \
             (k.contains('/') && !k.startsWith('requests.') && k.matches('{QUALIFIED_NAME}')))"
        )
    };
    // A longer pattern, as for other quantities, would cost more than one rule may. This one lets pass `1e999`, with which
    // Kubernetes is done at once.
    let amounts = |field: &str| {
        format!(
            "!has(self.{field}) || self.{field}.all(k, !string(self.{field}[k]).matches('[eE]....') && \
             isQuantity(string(self.{field}[k])) && \
             !quantity(string(self.{field}[k])).isLessThan(quantity('0')))"
        )
    };
    vec![
        Rule::new(
            AT,
            Some(".requests"),
            names("requests"),
            "spec.resources.requests must name cpu, memory, ephemeral-storage, large pages as in hugepages-2Mi, or a \
             resource of a domain as in example.com/disk; correct the name",
        ),
        Rule::new(
            AT,
            Some(".limits"),
            names("limits"),
            "spec.resources.limits must name cpu, memory, ephemeral-storage, large pages as in hugepages-2Mi, or a \
             resource of a domain as in example.com/disk; correct the name",
        ),
        Rule::new(
            AT,
            Some(".requests"),
            amounts("requests"),
            "spec.resources.requests must hold quantities; write them as in cpu: 500m, memory: 1Gi",
        ),
        Rule::new(
            AT,
            Some(".limits"),
            amounts("limits"),
            "spec.resources.limits must hold quantities; write them as in cpu: \"2\", memory: 4Gi",
        ),
        // The text is compared: to compare quantities, and to ask first whether they are some that Kubernetes can reckon with,
        // would cost more than one rule may.
        Rule::new(
            AT,
            Some(".requests"),
            format!(
                "!has(self.requests) || self.requests.all(k, !{NOT_SHARED} || (has(self.limits) && k in self.limits && \
                 string(self.requests[k]) == string(self.limits[k])))"
            ),
            "spec.resources.requests must be the same as spec.resources.limits for large pages and for a resource of a \
             domain; set the limit to the request, as written",
        ),
        // An API server's isInteger is false of 1000m, which Kubernetes takes for 1. A list of one element gives it a name: to
        // make the quantity twice would cost more than one rule may. The bounds come before int, for which 1e99 is too large:
        // that would be an error, which has no message. Kubernetes itself counts in thousandths, of which 63 bits hold 9P:
        // nothing that has an E in it is as small, but for an exponent that nobody needs.
        Rule::new(
            AT,
            Some(".limits"),
            "!has(self.limits) || self.limits.all(k, k in ['cpu', 'memory', 'ephemeral-storage'] || \
             k.startsWith('hugepages-') || k.contains('kubernetes.io/') || (!string(self.limits[k]).matches('[eE]') && \
             (!isQuantity(string(self.limits[k])) || \
             [quantity(string(self.limits[k])).asApproximateFloat()].all(n, n >= 0.0 && n <= 1e15 && n == double(int(n))))))",
            "spec.resources.limits must be a whole number from 0 to 1P for a resource of a domain; write it as in \
             example.com/disk: 1",
        ),
        Rule::new(
            AT,
            Some(".limits"),
            "!has(self.limits) || !self.limits.exists(k, k.startsWith('hugepages-')) || \
             ['cpu', 'memory'].exists(k, k in self.limits || (has(self.requests) && k in self.requests))",
            "spec.resources.limits of large pages need cpu or memory beside them; set one of the two",
        ),
    ]
    .into_iter()
    .chain(requests_within_limits())
    .collect()
}

pub(super) fn scheduling() -> Vec<Rule> {
    const AT: &str = "spec.scheduling";
    const TOLERATIONS: Option<&str> = Some(".tolerations");
    let tolerations = |condition: &str| format!("!has(self.tolerations) || self.tolerations.all(t, {condition})");
    vec![
        Rule::new(
            AT,
            Some(".nodeSelector"),
            format!(
                "!has(self.nodeSelector) || self.nodeSelector.all(k, k.matches('{QUALIFIED_NAME}') && \
                 self.nodeSelector[k].matches('{LABEL_VALUE}'))"
            ),
            "spec.scheduling.nodeSelector must hold labels of nodes; write them as in kubernetes.io/arch: amd64",
        ),
        Rule::new(
            AT,
            TOLERATIONS,
            tolerations("!has(t.effect) || t.effect in ['', 'NoSchedule', 'PreferNoSchedule', 'NoExecute']"),
            "spec.scheduling.tolerations: effect must be NoSchedule, PreferNoSchedule or NoExecute, or left out for all; \
             correct it",
        ),
        Rule::new(
            AT,
            TOLERATIONS,
            tolerations("!has(t.operator) || t.operator in ['', 'Exists', 'Equal']"),
            "spec.scheduling.tolerations: operator must be Exists or Equal; correct it",
        ),
        Rule::new(
            AT,
            TOLERATIONS,
            tolerations(
                "has(t.operator) && t.operator == 'Exists' ? (!has(t.value) || t.value == '') : (has(t.key) && t.key != '')",
            ),
            "spec.scheduling.tolerations: operator Exists takes no value, and operator Equal needs a key; remove the \
             value, or name the key",
        ),
        Rule::new(
            AT,
            TOLERATIONS,
            tolerations(&format!("!has(t.key) || t.key == '' || t.key.matches('{QUALIFIED_NAME}')")),
            "spec.scheduling.tolerations: key must be that of a taint; write it as in dedicated or example.com/dedicated",
        ),
        Rule::new(
            AT,
            TOLERATIONS,
            tolerations(&format!(
                "!has(t.value) || (has(t.operator) && t.operator == 'Exists') || t.value.matches('{LABEL_VALUE}')"
            )),
            "spec.scheduling.tolerations: value must be letters, digits, dashes, underscores and dots; correct it",
        ),
        Rule::new(
            AT,
            TOLERATIONS,
            tolerations("!has(t.tolerationSeconds) || (has(t.effect) && t.effect == 'NoExecute')"),
            "spec.scheduling.tolerations: tolerationSeconds needs effect NoExecute; set the effect or remove the seconds",
        ),
        Rule::new(
            AT,
            Some(".topologySpreadConstraints"),
            format!(
                "!has(self.topologySpreadConstraints) || \
                 self.topologySpreadConstraints.all(c, c.topologyKey.matches('{QUALIFIED_NAME}'))"
            ),
            "spec.scheduling.topologySpreadConstraints: topologyKey must be a label of nodes; write it as in \
             topology.kubernetes.io/zone",
        ),
        Rule::new(
            AT,
            Some(".priorityClassName"),
            format!("!has(self.priorityClassName) || self.priorityClassName.matches('{DNS_NAME}')"),
            "spec.scheduling.priorityClassName must be the name of a PriorityClass, in lower case; correct it",
        ),
    ]
}

pub(super) fn service() -> Vec<Rule> {
    const AT: &str = "spec.service";
    vec![
        Rule::new(
            AT,
            Some(".nodePort"),
            "!has(self.nodePort) || self.type != 'ClusterIP'",
            "spec.service.nodePort needs spec.service.type NodePort or LoadBalancer; set the type, or remove the port",
        ),
        Rule::new(
            AT,
            Some(".nodePort"),
            "!has(self.nodePort) || (self.nodePort >= 1 && self.nodePort <= 65535)",
            "spec.service.nodePort must be from 1 to 65535, and in the node port range of the Kubernetes cluster (30000 \
             to 32767 by default); choose another, or remove it",
        ),
        Rule::new(
            AT,
            Some(".annotations"),
            format!("!has(self.annotations) || self.annotations.all(k, k.matches('{QUALIFIED_NAME}'))"),
            "spec.service.annotations must have keys such as example.com/name; correct the key",
        ),
    ]
}
