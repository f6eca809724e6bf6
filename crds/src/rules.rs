//! The CEL rules of the spec: what the API server refuses, and what it then tells the user. No rule reads the status.
//!
//! A rule that compares with the old object stands on `spec`, not on its field: removing the field must not get round it.
//! The API server asks no rule about a part of the spec that an update leaves as it was, so a rule that is tightened
//! later blocks no status and no finalizer.

use crate::flags;

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

/// The first patch of each line that Quorate runs. Below 3.5.30 and 3.6.11 etcd refuses a new member while any other is
/// down (etcd #21667), so nothing heals; 3.5.32 is the floor of the way from 3.5 to 3.6 (etcd's upgrade_3_6 guide).
const OLDEST: [(&str, u32); 2] = [("3.5", 32), ("3.6", 11)];

/// Every rule of the spec, in the order of the API reference.
pub fn all() -> Vec<Rule> {
    [
        replicas(),
        version(),
        image(),
        storage(),
        storage_changes(),
        etcd(),
        extra_flags(),
        resources(),
        scheduling(),
        service(),
    ]
    .concat()
}

fn replicas() -> Vec<Rule> {
    vec![
        Rule::new(
            "spec.replicas",
            None,
            "self in [0, 1, 3, 5, 7]",
            "spec.replicas must be 1, 3, 5 or 7, or 0 to hibernate: an even number of members survives no more failures \
         than one member less; choose an odd number",
        ),
        Rule::new(
            "spec",
            Some(".replicas"),
            "self.replicas != 0 || !self.storage.ephemeral",
            "spec.replicas must not be 0 with spec.storage.ephemeral, because hibernation would lose all data; keep at least \
         one member, or delete the EtcdCluster",
        ),
    ]
}

fn version() -> Vec<Rule> {
    const FORM: &str = r"self.matches('^3[.][5-7][.](0|[1-9][0-9]{0,2})$')";
    let floors: Vec<String> = OLDEST
        .iter()
        .map(|(line, patch)| format!("(!self.startsWith('{line}.') || int(self.substring(4)) >= {patch})"))
        .collect();
    let oldest: Vec<String> = OLDEST.iter().map(|(line, patch)| format!("{line}.{patch}")).collect();
    vec![
        Rule::new(
            "spec.version",
            None,
            FORM,
            "spec.version must be a full version of etcd 3.5, 3.6 or 3.7 without a leading v; write it as in 3.6.16",
        ),
        Rule::new(
            "spec.version",
            None,
            format!("!{FORM} || ({})", floors.join(" && ")),
            format!(
                "spec.version is too old: the oldest patches that Quorate runs are {}, because earlier ones refuse a \
                 new member while another is down; choose a later patch",
                oldest.join(" and ")
            ),
        ),
    ]
}

fn image() -> Vec<Rule> {
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

/// The name of an object: a DNS subdomain.
const DNS_NAME: &str = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$";
/// A label or annotation key: an optional prefix and a name.
const QUALIFIED_NAME: &str = "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$";
/// The value of a label.
const LABEL_VALUE: &str = "^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$";

fn storage() -> Vec<Rule> {
    const AT: &str = "spec.storage";
    vec![
        Rule::new(
            AT,
            Some(".size"),
            "isQuantity(self.size) && quantity(self.size).compareTo(quantity('1Gi')) >= 0 \
             && quantity(self.size).compareTo(quantity('64Ti')) <= 0",
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

fn storage_changes() -> Vec<Rule> {
    const AT: &str = "spec";
    const SIZES: &str = "!isQuantity(self.storage.size) || !isQuantity(oldSelf.storage.size)";
    const COMPARED: &str = "quantity(self.storage.size).compareTo(quantity(oldSelf.storage.size))";
    vec![
        Rule::new(
            AT,
            Some(".storage.size"),
            format!("{SIZES} || {COMPARED} >= 0"),
            "spec.storage.size can only grow, because volumes can't shrink; set it back",
        )
        .telling(
            "'spec.storage.size can only grow, because volumes can\\'t shrink; set it to ' + oldSelf.storage.size + ' or more'",
        ),
        Rule::new(
            AT,
            Some(".storage.size"),
            format!("!self.storage.ephemeral || {SIZES} || {COMPARED} <= 0"),
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

fn etcd() -> Vec<Rule> {
    const AT: &str = "spec.etcd";
    vec![
        Rule::new(
            AT,
            Some(".quota"),
            "!has(self.quota) || (isQuantity(self.quota) && quantity(self.quota).compareTo(quantity('16Mi')) >= 0 \
             && quantity(self.quota).compareTo(quantity('100Gi')) <= 0)",
            "spec.etcd.quota must be a quantity from 16Mi to 100Gi; write it as in 2Gi",
        ),
        Rule::new(
            "spec",
            Some(".etcd.quota"),
            "!has(self.etcd.quota) || !isQuantity(self.etcd.quota) || !isQuantity(self.storage.size) || \
             quantity(self.storage.size).compareTo(quantity(self.etcd.quota).add(quantity(self.etcd.quota)).add(quantity('512Mi'))) >= 0",
            "spec.etcd.quota leaves too little room: spec.storage.size must be at least twice the quota plus 512Mi, for \
             the log and for the copy that a defragmentation or a received snapshot makes; lower the quota or raise the size",
        ),
        Rule::new(
            AT,
            Some(".heartbeatIntervalMillis"),
            "self.heartbeatIntervalMillis >= 10 && self.heartbeatIntervalMillis <= 10000",
            "spec.etcd.heartbeatIntervalMillis must be from 10 to 10000; about the round trip between members is right",
        ),
        Rule::new(
            AT,
            Some(".electionTimeoutMillis"),
            "self.electionTimeoutMillis >= 5 * self.heartbeatIntervalMillis && self.electionTimeoutMillis <= 50000",
            "spec.etcd.electionTimeoutMillis must be at least five times spec.etcd.heartbeatIntervalMillis and at most \
             50000; ten times the heartbeat is right",
        ),
        Rule::new(
            AT,
            Some(".snapshotCount"),
            "self.snapshotCount >= 100 && self.snapshotCount <= 10000000",
            "spec.etcd.snapshotCount must be from 100 to 10000000; remove it for the default of 10000",
        ),
        Rule::new(
            "spec.etcd.autoCompaction",
            Some(".retention"),
            "self.mode != 'Periodic' || self.retention.matches('^(0|([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?)$')",
            "spec.etcd.autoCompaction.retention must be a duration in mode Periodic; write it as in 1h or 30m, or 0 to \
             compact nothing",
        ),
        Rule::new(
            "spec.etcd.autoCompaction",
            Some(".retention"),
            "self.mode != 'Revision' || self.retention.matches('^(0|[1-9][0-9]{0,17})$')",
            "spec.etcd.autoCompaction.retention must be a number of revisions in mode Revision; write it as in \"10000\", \
             or \"0\" to compact nothing",
        ),
    ]
}

fn extra_flags() -> Vec<Rule> {
    const AT: &str = "spec.etcd";
    const FIELD: Option<&str> = Some(".extraFlags");
    let none = |bad: &str| format!("!has(self.extraFlags) || !self.extraFlags.exists(f, {bad})");
    let those = |bad: &str| format!("self.extraFlags.filter(f, {bad}).join(', ')");
    let dashed = "f.startsWith('-')";
    let with_field = format!("f in {}", cel_list(flags::WITH_FIELD.iter().map(|(name, _)| *name)));
    let reserved = reserved_condition();
    let allowed = format!("f in {}", cel_list(flags::ALLOWED.iter().map(|flag| flag.name)));
    let unknown = format!("!({allowed}) && !({dashed}) && !({with_field}) && !({reserved})");
    let fields: Vec<String> = flags::WITH_FIELD.iter().map(|(name, field)| format!("{field} for {name}")).collect();
    let absent_on_3_5 = format!(
        "f in {}",
        cel_list(flags::ALLOWED.iter().filter(|f| f.on_3_5 == flags::Spelling::Absent).map(|f| f.name))
    );
    vec![
        Rule::new(
            AT,
            FIELD,
            none(dashed),
            "spec.etcd.extraFlags must hold names of flags without dashes in front; write log-level, not --log-level",
        ),
        Rule::new(
            AT,
            FIELD,
            none(&with_field),
            format!(
                "spec.etcd.extraFlags must not hold a flag that has a field of its own; use {}",
                fields.join(", ")
            ),
        ),
        Rule::new(
            AT,
            FIELD,
            none(&reserved),
            "spec.etcd.extraFlags must not hold a flag that Quorate sets itself or that endangers the data (names, \
             addresses, membership, directories, TLS, unsafe modes); remove it",
        )
        .telling(format!(
            "'spec.etcd.extraFlags must not hold ' + {} + ': Quorate sets it itself, or it endangers the data; remove it'",
            those(&reserved)
        )),
        Rule::new(
            AT,
            FIELD,
            none(&unknown),
            "spec.etcd.extraFlags holds a flag that is not on the list of the API reference (in the names of etcd 3.6); \
             correct or remove it",
        )
        .telling(format!(
            "'spec.etcd.extraFlags holds ' + {} + ', which is not on the list of the API reference (in the names of etcd \
             3.6); correct or remove it'",
            those(&unknown)
        )),
        Rule::new(
            "spec",
            Some(".etcd.extraFlags"),
            format!(
                "!self.version.startsWith('3.5.') || !has(self.etcd.extraFlags) || !self.etcd.extraFlags.exists(f, {absent_on_3_5})"
            ),
            "spec.etcd.extraFlags holds a flag that etcd 3.5 does not have (feature-gates); remove it, or raise \
             spec.version to 3.6",
        ),
    ]
}

/// The condition under which `f` is one of the reserved flags.
fn reserved_condition() -> String {
    let (prefixes, names): (Vec<&str>, Vec<&str>) = flags::RESERVED.iter().partition(|entry| entry.ends_with('-'));
    let prefixes: Vec<String> = prefixes.iter().map(|prefix| prefix.trim_end_matches('-').to_owned()).collect();
    format!("f in {} || f.matches('^({})-')", cel_list(names.into_iter()), prefixes.join("|"))
}

fn cel_list<'a>(items: impl Iterator<Item = &'a str>) -> String {
    let quoted: Vec<String> = items.map(|item| format!("'{item}'")).collect();
    format!("[{}]", quoted.join(", "))
}

fn resources() -> Vec<Rule> {
    const AT: &str = "spec.resources";
    let amounts = |field: &str| {
        format!(
            "!has(self.{field}) || self.{field}.all(k, isQuantity(string(self.{field}[k])) && \
             quantity(string(self.{field}[k])).sign() >= 0)"
        )
    };
    vec![
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
        Rule::new(
            AT,
            Some(".requests"),
            "!has(self.requests) || !has(self.limits) || self.requests.all(k, !(k in self.limits) || \
             !isQuantity(string(self.requests[k])) || !isQuantity(string(self.limits[k])) || \
             quantity(string(self.requests[k])).compareTo(quantity(string(self.limits[k]))) <= 0)",
            "spec.resources.requests must not be above spec.resources.limits; lower the request or raise the limit",
        ),
    ]
}

fn scheduling() -> Vec<Rule> {
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

fn service() -> Vec<Rule> {
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
