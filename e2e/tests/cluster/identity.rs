//! A store for which no Secret holds keys: as on a cloud, each pod of a ServiceAccount has a token, and who trusts its cluster
//! exchanges that for keys of a role. What EKS's webhook does to pods an admission policy does here; STS is a double of ours, and
//! as Amazon's does it takes a token by the cluster's public keys alone.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result, ensure};
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};
use data_encoding::BASE64URL_NOPAD;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::Api;
use kube::api::{ListParams, LogParams, PostParams};
use quorate_crds::BackupPhase;
use quorate_e2e::authority::{Authority, Order};
use quorate_e2e::scene::{Gateway, PATIENCE, Scene, Stage, Wish, play, reached_at, wait_for};
use serde_json::{Value, json};

use crate::archive::is_healthy;
use crate::clouds::answers::{Answers, Shown};
use crate::clouds::sts::{self, Keys, Objection, ROLE, SESSION};
use crate::upgrade::in_place;
use crate::{backup, restore};

/// The ServiceAccount that the role trusts, and one that it does not.
const TRUSTED: &str = "backups";
const STRANGER: &str = "others";
/// For whom the tokens are meant.
const AUDIENCE: &str = "sts.amazonaws.com";
/// Where a pod finds its token, and whom it trusts to be STS.
const FOLDER: &str = "/var/run/secrets/eks.amazonaws.com/serviceaccount";
/// The ConfigMap with that.
const TRUST: &str = "sts-trust";
/// How every token of Kubernetes begins: that of a JSON object, in base64.
const TOKEN: &str = "eyJ";

/// The cluster's public keys, by which its tokens are checked.
struct Issuer(BTreeMap<String, Vec<u8>>);

impl Issuer {
    /// As a cluster shows them to everybody.
    async fn of(scene: &Scene) -> Result<Self> {
        let shown = scene.kubectl(&["get", "--raw", "/openid/v1/jwks"]).await?.well()?;
        let shown: Value = serde_json::from_str(&shown)?;
        let coordinate = |key: &Value, name: &str| -> Result<Vec<u8>> {
            let text = key[name].as_str().with_context(|| format!("no {name} in {key}"))?;
            Ok(BASE64URL_NOPAD.decode(text.as_bytes())?)
        };
        let mut keys = BTreeMap::new();
        for key in shown["keys"].as_array().into_iter().flatten() {
            ensure!(key["crv"] == "P-256", "{key}");
            // A point that is not compressed (SEC 1, 2.3.3).
            let point = [vec![4], coordinate(key, "x")?, coordinate(key, "y")?].concat();
            keys.insert(key["kid"].as_str().context("a key has no name")?.to_owned(), point);
        }
        Ok(Self(keys))
    }

    /// What a token says that this cluster has signed for STS and whose time is not over.
    fn claims(&self, token: &str) -> Option<Value> {
        let decoded = |part: &str| BASE64URL_NOPAD.decode(part.as_bytes()).ok();
        let (signed, signature) = token.rsplit_once('.')?;
        let (head, claims) = signed.split_once('.')?;
        let read = |part: &str| serde_json::from_slice::<Value>(&decoded(part)?).ok();
        let key = self.0.get(read(head)?["kid"].as_str()?)?;
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, key).verify(signed.as_bytes(), &decoded(signature)?).ok()?;
        let claims = read(claims)?;
        let lasts = claims["exp"].as_i64()? > Timestamp::now().as_second();
        (lasts && claims["aud"] == json!([AUDIENCE])).then_some(claims)
    }
}

/// STS, and whom the pods trust to be it.
struct Sts {
    answers: Answers,
    trusted: String,
    /// The pods to which keys were given, once for each time.
    pods: Arc<Mutex<Vec<String>>>,
}

impl Sts {
    /// Every key that it gives has run out by the next request: so that whoever goes on has to ask anew.
    async fn start(scene: &Scene) -> Result<Self> {
        let (authority, issuer) = (Authority::new("sts")?, Issuer::of(scene).await?);
        let leaf = authority.signs(&Order::both("sts", &[&reached_at()?.to_string()]))?.keys(&authority.trusted());
        let (access, secret) = Gateway::keys();
        let keys = Keys { access, secret, lasting: SignedDuration::ZERO };
        let pods = Arc::<Mutex<Vec<String>>>::default();
        let (trusted, given) = (format!("system:serviceaccount:{}:{TRUSTED}", scene.namespace()), Arc::clone(&pods));
        let shown = Shown { certificate: &leaf.certificate, key: &leaf.key };
        let answers = Answers::over_tls(Ipv4Addr::UNSPECIFIED, &shown, move |head, _| {
            sts::answer(head, &keys, |token| {
                let claims = issuer.claims(token).ok_or(Objection::Invalid)?;
                if claims["sub"] != trusted {
                    return Err(Objection::Distrusted);
                }
                let pod = claims["kubernetes.io"]["pod"]["name"].as_str().ok_or(Objection::Invalid)?;
                given.lock().unwrap_or_else(PoisonError::into_inner).push(pod.to_owned());
                Ok(())
            })
        });
        Ok(Self { answers, trusted: authority.trusted(), pods })
    }

    /// How often keys were given to a pod whose name begins so.
    fn gave(&self, name: &str) -> usize {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner).iter().filter(|pod| pod.starts_with(name)).count()
    }

    /// What EKS sets in every container, and what is needed besides as this is not Amazon's.
    fn variables(&self) -> Result<[(&'static str, String); 6]> {
        Ok([
            ("AWS_ROLE_ARN", ROLE.to_owned()),
            ("AWS_WEB_IDENTITY_TOKEN_FILE", format!("{FOLDER}/token")),
            ("AWS_STS_REGIONAL_ENDPOINTS", "regional".to_owned()),
            ("AWS_ROLE_SESSION_NAME", SESSION.to_owned()),
            ("AWS_ENDPOINT_URL_STS", format!("https://{}:{}", reached_at()?, self.answers.port)),
            ("QUORATE_STORE_CA", format!("{FOLDER}/ca.crt")),
        ])
    }

    /// Makes both accounts, and has every pod of theirs changed as by EKS's webhook. What is not in the namespace goes with it.
    async fn is_admitted(&self, scene: &Scene) -> Result<()> {
        let account =
            |name: &str| json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": name } });
        let trust = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": TRUST }, "data": { "ca.crt": self.trusted },
        });
        let namespace = Api::<Namespace>::all(scene.client().clone()).get(scene.namespace()).await?;
        let name = format!("{}-identity", scene.namespace());
        let metadata = json!({
            "name": name,
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Namespace", "name": scene.namespace(), "uid": namespace.metadata.uid,
            }],
        });
        let policy = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingAdmissionPolicy",
            "metadata": metadata,
            "spec": {
                "failurePolicy": "Fail",
                "reinvocationPolicy": "Never",
                "matchConstraints": {
                    "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": scene.namespace() } },
                    "resourceRules": [{
                        "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"],
                    }],
                },
                "matchConditions": [{
                    "name": "account",
                    "expression": format!("object.spec.?serviceAccountName.orValue('') in ['{TRUSTED}', '{STRANGER}']"),
                }],
                "mutations": [
                    { "patchType": "JSONPatch", "jsonPatch": { "expression": volume() } },
                    { "patchType": "ApplyConfiguration", "applyConfiguration": { "expression": self.containers()? } },
                ],
            },
        });
        let binding = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingAdmissionPolicyBinding",
            "metadata": metadata,
            "spec": { "policyName": name },
        });
        for object in [account(TRUSTED), account(STRANGER), trust, policy, binding] {
            scene.apply(&object).await?.well()?;
        }
        let probe = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": "probe" },
            "spec": { "serviceAccountName": TRUSTED, "containers": [{ "name": "one", "image": "none" }] },
        });
        let probe: Pod = serde_json::from_value(probe)?;
        let pods = scene.api::<Pod>();
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        wait_for("the policy to change pods", PATIENCE, async || {
            let changed = serde_json::to_value(pods.create(&dry, &probe).await?)?;
            ensure!(changed["spec"]["containers"][0]["env"][0]["name"] == "AWS_ROLE_ARN", "{changed}");
            Ok(())
        })
        .await
    }

    /// An expression for what each container is given.
    fn containers(&self) -> Result<String> {
        let each = |kind: &str| -> Result<String> {
            let variable = |(name, value)| format!("Object.spec.{kind}.env{{name: '{name}', value: '{value}'}}");
            let env: Vec<String> = self.variables()?.into_iter().map(variable).collect();
            let mount = format!(
                "Object.spec.{kind}.volumeMounts{{name: 'aws-iam-token', mountPath: '{FOLDER}', readOnly: true}}"
            );
            Ok(format!(
                "object.spec.?{kind}.orValue([]).map(c, Object.spec.{kind}{{name: c.name, env: [{}], \
                 volumeMounts: [{mount}]}})",
                env.join(", ")
            ))
        };
        Ok(format!(
            "Object{{spec: Object.spec{{containers: {}, initContainers: {}}}}}",
            each("containers")?,
            each("initContainers")?
        ))
    }
}

/// An expression for the volume with the token. Its sources are one value for an apply, which may not change such.
fn volume() -> String {
    let projected = "Object.spec.volumes.projected";
    let token = format!(
        "{projected}.sources{{serviceAccountToken: {projected}.sources.serviceAccountToken{{audience: '{AUDIENCE}', \
         expirationSeconds: 86400, path: 'token'}}}}"
    );
    let trust = format!("{projected}.sources{{configMap: {projected}.sources.configMap{{name: '{TRUST}'}}}}");
    format!(
        "[JSONPatch{{op: 'add', path: '/spec/volumes/-', value: Object.spec.volumes{{name: 'aws-iam-token', \
         projected: {projected}{{sources: [{token}, {trust}]}}}}}}]"
    )
}

/// Demands that no container of a pod has printed a token.
async fn nothing_is_told(scene: &Scene) -> Result<()> {
    let pods = scene.api::<Pod>();
    for pod in pods.list(&ListParams::default()).await? {
        let (name, spec) = (pod.metadata.name.unwrap_or_default(), pod.spec.context("a pod has no spec")?);
        for container in spec.init_containers.into_iter().flatten().chain(spec.containers) {
            let log = LogParams { container: Some(container.name.clone()), ..LogParams::default() };
            let log = pods.logs(&name, &log).await?;
            ensure!(!log.contains(TOKEN), "{} of {name} printed a token", container.name);
        }
    }
    Ok(())
}

/// The continuous backup, one that is taken, and a cluster that begins with it, all without a Secret; and an account that the
/// role does not trust is told so.
#[tokio::test]
#[ignore = "make e2e"]
async fn the_identity_of_a_pod_is_enough_for_a_store() -> Result<()> {
    play("identity_s3", Stage::Shared, async |scene| {
        let (gateway, sts) = (Gateway::start().await?, Sts::start(scene).await?);
        sts.is_admitted(scene).await?;
        let store = gateway.store_as(TRUSTED);
        let wish = Wish::new("db", 3).with("/backup", json!({ "store": store, "flushIntervalSeconds": 1 }));
        let db = scene.create(&wish).await?;
        db.settles(3).await?;
        // What the policy does to pods is no change that the operator would undo.
        let held = in_place(&db, async || {
            restore::fill(&db, "restored").await?;
            is_healthy(&db, true).await?;

            scene.apply(&backup::backup("stranger", &gateway.store_as(STRANGER))).await?.well()?;
            let refused = backup::shows(scene, "stranger", BackupPhase::Failed, "StoreRefused").await?;
            let message = &refused.conditions[0].message;
            for part in ["web identity", ROLE, "AccessDenied: Not authorized"] {
                ensure!(message.contains(part), "{part}: {message}");
            }
            ensure!(!message.contains(TOKEN), "{message}");
            scene.kubectl(&["delete", "etcdbackup", "stranger"]).await?.well()?;

            let (_, held) = restore::backup(&db, &store).await?;
            ensure!(sts.gave("b-") > 0, "nothing was given to the pod that took the backup: {:?}", sts.pods);
            Ok(held)
        })
        .await?;
        // The archiver goes on with later keys.
        let before = sts.gave("db-");
        db.put("later", "than the backup").await?;
        wait_for("an archiver to ask for keys once more", PATIENCE, async || {
            ensure!(sts.gave("db-") > before, "it had {before} and has {}", sts.gave("db-"));
            Ok(())
        })
        .await?;
        nothing_is_told(scene).await?;
        db.delete().await?;

        let restored = scene.create(&restore::from_backup("restored", 3)).await?;
        restored.settles(3).await?;
        ensure!(sts.gave("restored-") > 0, "nothing was given to the pod that restored: {:?}", sts.pods);
        restore::holds(&restored, &held).await?;
        nothing_is_told(scene).await
    })
    .await
}
