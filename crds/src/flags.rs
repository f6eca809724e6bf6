//! Which flags of etcd a user may set in `spec.etcd.extraFlags`, and how each is spelled on which line of etcd. It holds
//! facts about etcd; it builds no command line.

/// A flag that may be set by the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flag {
    /// The name in etcd 3.6 and 3.7, without dashes.
    pub name: &'static str,
    /// How etcd 3.5 spells it.
    pub on_3_5: Spelling,
    /// What it is for, in a few words.
    pub purpose: &'static str,
}

/// A feature of `feature-gates`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    /// The name.
    pub name: &'static str,
    /// The first minor version of etcd 3 that has it there: 6, with which `feature-gates` came, or a later one.
    pub since: u32,
    /// The flag of its own that etcd 3.5 has for it.
    pub on_3_5: Option<&'static str>,
}

/// How etcd 3.5 spells a flag of 3.6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spelling {
    /// The same.
    Same,
    /// With the prefix `experimental-`.
    Experimental,
    /// As a flag of its own for each feature in it: [`GATES`].
    Gates,
    /// It has no such flag.
    Absent,
}

/// What a version has no flag for: a flag by its name, or one feature as in `feature-gates=AllAlpha=true`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing(pub String);

/// What the value of a flag has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A whole number.
    Number {
        /// No less than this.
        least: u32,
        /// No more than this.
        most: u32,
    },
    /// A time such as `30s`, of at most a year. 0 turns off what it is for, or stands for the default.
    Duration,
    /// The same, above 0.
    Period,
    /// `true` or `false`.
    Switch,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// One of these words, in capitals or not.
    AnyCase(&'static [&'static str]),
    /// Names of features, each with `true` or `false`.
    Gates,
    /// `*`, or origins as etcd takes them: each `http` or `https`, a host and a port, without a path.
    Origins,
    /// A kind of authentication token that needs no file.
    Token,
    /// Any text: there is none with which etcd does not start.
    Text,
}

impl Flag {
    /// The flag of this name, if it may be set.
    pub fn find(name: &str) -> Option<&'static Self> {
        ALLOWED.iter().find(|flag| flag.name == name)
    }

    /// The flags that say this value on a minor version of etcd 3, each with its own value.
    pub fn on(&self, minor: u32, value: &str) -> Vec<Result<(String, String), Missing>> {
        match (minor, self.on_3_5) {
            (5, Spelling::Absent) => vec![Err(Missing(self.name.to_owned()))],
            (5, Spelling::Experimental) => vec![Ok((format!("experimental-{}", self.name), value.to_owned()))],
            (5, Spelling::Gates) => value.split(',').map(|gate| self.gate_on_3_5(gate.trim())).collect(),
            (_, Spelling::Gates) => self.gates(minor, value),
            (_, Spelling::Same | Spelling::Experimental | Spelling::Absent) => {
                vec![Ok((self.name.to_owned(), value.to_owned()))]
            }
        }
    }

    /// Both lines read the value by the same function (`strconv.ParseBool`), and take the last of several.
    fn gate_on_3_5(&self, gate: &str) -> Result<(String, String), Missing> {
        let found = gate.split_once('=').and_then(|(name, value)| Some((Gate::of(name)?.on_3_5?, value.trim_start())));
        let (flag, value) = found.ok_or_else(|| self.missing(gate))?;
        Ok((flag.to_owned(), value.to_owned()))
    }

    /// Later versions have one flag for all features, and do not start with one that they do not know.
    fn gates(&self, minor: u32, value: &str) -> Vec<Result<(String, String), Missing>> {
        let came_later = |gate: &&str| Gate::of(gate).is_some_and(|gate| !gate.is_on(minor));
        let (later, known): (Vec<&str>, Vec<&str>) = value.split(',').partition(came_later);
        let known = (!known.is_empty()).then(|| Ok((self.name.to_owned(), known.join(","))));
        known.into_iter().chain(later.into_iter().map(|gate| Err(self.missing(gate)))).collect()
    }

    fn missing(&self, gate: &str) -> Missing {
        Missing(format!("{}={}", self.name, gate.trim()))
    }
}

impl Gate {
    /// The feature of this name, with a value as in `Name=true` or without; none if no version has it.
    fn of(gate: &str) -> Option<&'static Self> {
        let name = gate.split('=').next().unwrap_or_default().trim();
        GATES.iter().find(|gate| gate.name == name)
    }

    /// Whether this minor version of etcd 3 has it.
    pub fn is_on(&self, minor: u32) -> bool {
        if minor == 5 { self.on_3_5.is_some() } else { self.since <= minor }
    }
}

const fn gate(name: &'static str, since: u32, on_3_5: Option<&'static str>) -> Gate {
    Gate { name, since, on_3_5 }
}

const fn flag(name: &'static str, on_3_5: Spelling, purpose: &'static str) -> Flag {
    Flag { name, on_3_5, purpose }
}

/// Every flag that may be set. Source: the flag sets of etcd's release-3.5, release-3.6 and release-3.7 branches
/// (`server/etcdmain/config.go`, `server/embed/config.go`) as of 3.5.35, 3.6.16 and 3.7.3, less those that Quorate sets itself, those that only make
/// sense for one member, and those that trade durability for speed.
pub const ALLOWED: &[Flag] = &[
    flag("auth-token", Spelling::Same, "the kind of authentication token: simple"),
    flag("auth-token-ttl", Spelling::Same, "how long a simple token lives, in seconds"),
    flag("backend-batch-interval", Spelling::Same, "the longest time before a batch is committed to disk"),
    flag("backend-batch-limit", Spelling::Same, "how many operations a batch holds at most"),
    flag("backend-bbolt-freelist-type", Spelling::Same, "how the database keeps its free pages: array or map"),
    flag("bcrypt-cost", Spelling::Same, "the cost of hashing passwords"),
    flag("bootstrap-defrag-threshold-megabytes", Spelling::Experimental, "defragment at start when this much is free"),
    flag("compact-hash-check-time", Spelling::Experimental, "how often hashes of compactions are compared"),
    flag("compaction-batch-limit", Spelling::Experimental, "how many revisions a step of a compaction deletes"),
    flag("compaction-sleep-interval", Spelling::Experimental, "the pause between steps of a compaction"),
    flag("corrupt-check-time", Spelling::Experimental, "how often the members compare their data"),
    flag("cors", Spelling::Same, "the origins that a browser may come from"),
    flag("distributed-tracing-address", Spelling::Experimental, "where traces are sent"),
    flag("distributed-tracing-instance-id", Spelling::Experimental, "the instance id in traces"),
    flag("distributed-tracing-sampling-rate", Spelling::Experimental, "how many of a million requests are traced"),
    flag("distributed-tracing-service-name", Spelling::Experimental, "the service name in traces"),
    flag("enable-distributed-tracing", Spelling::Experimental, "send traces"),
    flag("enable-grpc-gateway", Spelling::Same, "serve JSON over HTTP on the client port"),
    flag("enable-pprof", Spelling::Same, "serve runtime profiles"),
    flag("feature-gates", Spelling::Gates, "features by name, as Name=true"),
    flag("grpc-keepalive-interval", Spelling::Same, "how often an idle client is pinged"),
    flag("grpc-keepalive-min-time", Spelling::Same, "how often a client may ping"),
    flag("grpc-keepalive-timeout", Spelling::Same, "how long a ping waits for its answer"),
    flag("host-whitelist", Spelling::Same, "the host names that an HTTP request may name"),
    flag("log-format", Spelling::Absent, "json or console"),
    flag("log-level", Spelling::Same, "debug, info, warn, error, dpanic, panic or fatal"),
    flag("max-concurrent-streams", Spelling::Same, "how many streams a client connection may open"),
    flag("max-request-bytes", Spelling::Same, "the largest request, in bytes"),
    flag("max-snapshots", Spelling::Same, "how many raft snapshots are kept"),
    flag("max-txn-ops", Spelling::Same, "how many operations a transaction may hold"),
    flag("max-wals", Spelling::Same, "how many files of the write-ahead log are kept"),
    flag("memory-mlock", Spelling::Experimental, "keep etcd's memory from being swapped out"),
    flag("metrics", Spelling::Same, "basic or extensive"),
    flag("pre-vote", Spelling::Same, "ask before standing for election"),
    flag("snapshot-catchup-entries", Spelling::Experimental, "how many entries are kept behind a raft snapshot"),
    flag("warning-apply-duration", Spelling::Experimental, "warn of an apply that takes longer"),
    flag("warning-unary-request-duration", Spelling::Absent, "warn of a request that takes longer"),
    flag("watch-progress-notify-interval", Spelling::Experimental, "how often an idle watch is told the revision"),
];

/// Every feature of `feature-gates`. Source: the help of 3.6.16, which tells for each flag of 3.5 that became one what to use
/// instead, and that of 3.7.3.
pub const GATES: &[Gate] = &[
    gate("AllAlpha", 6, None),
    gate("AllBeta", 6, None),
    gate("CompactHashCheck", 6, Some("experimental-compact-hash-check-enabled")),
    gate("FastLeaseKeepAlive", 7, None),
    gate("InitialCorruptCheck", 6, Some("experimental-initial-corrupt-check")),
    gate("LeaseCheckpoint", 6, Some("experimental-enable-lease-checkpoint")),
    gate("LeaseCheckpointPersist", 6, Some("experimental-enable-lease-checkpoint-persist")),
    gate("PriorityRequest", 7, None),
    gate("SetMemberLocalAddr", 6, None),
    gate("StopGRPCServiceOnDefrag", 6, Some("experimental-stop-grpc-service-on-defrag")),
    gate("TxnModeWriteWithSharedBuffer", 6, Some("experimental-txn-mode-write-with-shared-buffer")),
];

/// The least that `max-request-bytes` may be. etcd measures its own requests by it too: a member whose name and URL do not fit
/// is never published, and never serves. With the longest names that Kubernetes and we take they make some 300 bytes
/// (`publishV3` and `processInternalRaftRequestOnce` in `server/etcdserver`).
const LEAST_REQUEST_BYTES: u32 = 512;

/// What the value of each flag that may be set has to be, in the order of the rules. Source: the same, and what reads the values
/// (`pkg/flags/unique_urls.go`, `client/pkg/types/urls.go`, `server/auth/store.go`); what etcd would take silently for something
/// else (an octal number, an unknown kind of free list, options of a simple token) is not of its kind.
pub const KINDS: &[(Kind, &[&str])] = &[
    (
        Kind::Number { least: 0, most: u32::MAX },
        &[
            "auth-token-ttl",
            "backend-batch-limit",
            "bcrypt-cost",
            "bootstrap-defrag-threshold-megabytes",
            "compaction-batch-limit",
            "max-concurrent-streams",
            "max-snapshots",
            "max-wals",
            "snapshot-catchup-entries",
        ],
    ),
    (Kind::Number { least: LEAST_REQUEST_BYTES, most: u32::MAX }, &["max-request-bytes"]),
    // With 0 etcd starts, and refuses every transaction.
    (Kind::Number { least: 1, most: u32::MAX }, &["max-txn-ops"]),
    (Kind::Number { least: 0, most: 1_000_000 }, &["distributed-tracing-sampling-rate"]),
    (
        Kind::Duration,
        &[
            "backend-batch-interval",
            "compaction-sleep-interval",
            "corrupt-check-time",
            "grpc-keepalive-interval",
            "grpc-keepalive-min-time",
            "grpc-keepalive-timeout",
            "warning-apply-duration",
            "warning-unary-request-duration",
            "watch-progress-notify-interval",
        ],
    ),
    (Kind::Period, &["compact-hash-check-time"]),
    (Kind::Switch, &["enable-distributed-tracing", "enable-grpc-gateway", "enable-pprof", "memory-mlock", "pre-vote"]),
    (Kind::OneOf(&["array", "map"]), &["backend-bbolt-freelist-type"]),
    (Kind::OneOf(&["json", "console"]), &["log-format"]),
    (Kind::AnyCase(&["debug", "info", "warn", "error", "dpanic", "panic", "fatal"]), &["log-level"]),
    (Kind::OneOf(&["basic", "extensive"]), &["metrics"]),
    (Kind::Gates, &["feature-gates"]),
    (Kind::Origins, &["cors"]),
    // jwt reads its keys from files, and no field of the spec puts any into a member's pod.
    (Kind::Token, &["auth-token"]),
    (
        Kind::Text,
        &[
            "distributed-tracing-address",
            "distributed-tracing-instance-id",
            "distributed-tracing-service-name",
            "host-whitelist",
        ],
    ),
];

/// Flags that have a field of their own, and the field.
pub const WITH_FIELD: &[(&str, &str)] = &[
    ("auto-compaction-mode", "spec.etcd.autoCompaction.mode"),
    ("auto-compaction-retention", "spec.etcd.autoCompaction.retention"),
    ("election-timeout", "spec.etcd.electionTimeoutMillis"),
    ("heartbeat-interval", "spec.etcd.heartbeatIntervalMillis"),
    ("quota-backend-bytes", "spec.etcd.quota"),
    ("snapshot-count", "spec.etcd.snapshotCount"),
];

/// Flags that Quorate sets itself, or that would break its promises: identity, addresses, membership, durability, TLS,
/// where the log goes. They have an error of their own; any other flag that is not on the list above is refused as well.
pub const RESERVED: &[&str] = &[
    "advertise-client-urls",
    "auto-tls",
    "cert-file",
    "cipher-suites",
    "client-cert-allowed-hostname",
    "client-cert-auth",
    "client-cert-file",
    "client-crl-file",
    "client-key-file",
    "config-file",
    "data-dir",
    "discovery",
    "discovery-fallback",
    "discovery-proxy",
    "discovery-srv",
    "discovery-srv-name",
    "discovery-token",
    "downgrade-check-time",
    "enable-log-rotation",
    "enable-v2",
    "force-new-cluster",
    "initial-advertise-peer-urls",
    "initial-cluster",
    "initial-cluster-state",
    "initial-cluster-token",
    "initial-election-tick-advance",
    "key-file",
    "listen-client-http-urls",
    "listen-client-urls",
    "listen-metrics-urls",
    "listen-peer-urls",
    "log-outputs",
    "log-rotation-config-json",
    "logger",
    "max-learners",
    "name",
    "peer-auto-tls",
    "peer-cert-allowed-cn",
    "peer-cert-allowed-hostname",
    "peer-cert-file",
    "peer-client-cert-auth",
    "peer-client-cert-file",
    "peer-client-key-file",
    "peer-crl-file",
    "peer-key-file",
    "peer-skip-client-san-verification",
    "peer-trusted-ca-file",
    "proxy",
    "raft-read-timeout",
    "raft-write-timeout",
    "self-signed-cert-validity",
    "socket-reuse-address",
    "socket-reuse-port",
    "strict-reconfig-check",
    "tls-max-version",
    "tls-min-version",
    "trusted-ca-file",
    "unsafe-no-fsync",
    "v2-deprecation",
    "version",
    "wal-dir",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_flag_is_both_allowed_and_kept_back() {
        for flag in ALLOWED {
            assert!(!RESERVED.contains(&flag.name), "{}", flag.name);
            assert!(WITH_FIELD.iter().all(|(name, _)| *name != flag.name), "{}", flag.name);
        }
        for (name, _) in WITH_FIELD {
            assert!(!RESERVED.contains(name), "{name}");
        }
    }

    #[test]
    fn each_flag_that_may_be_set_is_of_one_kind() {
        let mut of_a_kind: Vec<&str> = KINDS.iter().flat_map(|(_, names)| *names).copied().collect();
        of_a_kind.sort_unstable();
        let mut allowed: Vec<&str> = ALLOWED.iter().map(|flag| flag.name).collect();
        allowed.sort_unstable();
        assert_eq!(of_a_kind, allowed);
    }

    #[test]
    fn flags_are_spelled_as_each_line_of_etcd_does() {
        let on = |name, minor| Flag::find(name).unwrap().on(minor, "1h");
        let told = |name: &str| vec![Ok((name.to_owned(), "1h".to_owned()))];
        assert_eq!(on("max-wals", 5), told("max-wals"));
        assert_eq!(on("corrupt-check-time", 5), told("experimental-corrupt-check-time"));
        assert_eq!(on("corrupt-check-time", 6), told("corrupt-check-time"));
        assert_eq!(on("log-format", 5), [Err(Missing("log-format".into()))]);
        assert_eq!(on("log-format", 7), told("log-format"));
        assert_eq!(Flag::find("data-dir"), None);
    }

    #[test]
    fn each_feature_is_a_flag_of_its_own_on_3_5() {
        let on = |minor, gates: &str| Flag::find("feature-gates").unwrap().on(minor, gates);
        for (gate, flag) in GATES.iter().filter_map(|gate| Some((gate.name, gate.on_3_5?))) {
            for value in ["true", "false", "T", "0"] {
                let gates = format!("{gate}={value}");
                assert_eq!(on(5, &gates), [Ok((flag.to_owned(), value.to_owned()))]);
                assert_eq!(on(6, &gates), [Ok(("feature-gates".to_owned(), gates))]);
            }
        }
        let missing = |gate: &str| Err(Missing(gate.to_owned()));
        assert_eq!(
            on(5, " LeaseCheckpoint = true ,AllAlpha=false, CompactHashCheck=False,LeaseCheckpoint"),
            [
                Ok(("experimental-enable-lease-checkpoint".to_owned(), "true".to_owned())),
                missing("feature-gates=AllAlpha=false"),
                Ok(("experimental-compact-hash-check-enabled".to_owned(), "False".to_owned())),
                missing("feature-gates=LeaseCheckpoint"),
            ]
        );
    }

    #[test]
    fn a_feature_that_came_later_is_none_of_an_earlier_version() {
        let on = |minor, gates: &str| Flag::find("feature-gates").unwrap().on(minor, gates);
        let told = |gates: &str| Ok(("feature-gates".to_owned(), gates.to_owned()));
        let missing = |gate: &str| Err(Missing(format!("feature-gates={gate}")));
        let gates = "AllBeta=true, FastLeaseKeepAlive = false ,LeaseCheckpoint=1";
        assert_eq!(on(7, gates), [told(gates)]);
        assert_eq!(on(6, gates), [told("AllBeta=true,LeaseCheckpoint=1"), missing("FastLeaseKeepAlive = false")]);
        assert_eq!(on(6, "PriorityRequest=true"), [missing("PriorityRequest=true")]);
    }
}
