//! How a server is configured: as it is by default, without what only costs time.

use std::fs;
use std::path::PathBuf;

use super::logins::TEST;
use super::program;
use super::server::Kube;
use crate::certificates::{Key, Pair, Standing};

/// The parts of the API that it cannot be without, and those that tests use.
const APIS: [&str; 8] = [
    "api/v1",
    "apiextensions.k8s.io/v1",
    "apiregistration.k8s.io/v1",
    "authentication.k8s.io/v1",
    "authorization.k8s.io/v1",
    "coordination.k8s.io/v1",
    "rbac.authorization.k8s.io/v1",
    "storage.k8s.io/v1",
];

/// Nothing is refused or changed for what controllers would have had to do before.
const NO_ADMISSION: &str = "--disable-admission-plugins=CertificateApproval,CertificateSigning,\
CertificateSubjectRestriction,DefaultIngressClass,DefaultStorageClass,DefaultTolerationSeconds,\
LimitRanger,MutatingAdmissionWebhook,NamespaceLifecycle,PersistentVolumeClaimResize,Priority,\
ResourceQuota,RuntimeClass,ServiceAccount,StorageObjectInUseProtection,TaintNodesByCondition,\
ValidatingAdmissionWebhook";

impl Kube {
    /// Writes what the flags name.
    pub(super) fn write_files(&self) {
        fs::write(self.path("tokens"), self.tokens()).unwrap();
        let rules = format!(
            "rules: [{{level: None, users: ['system:apiserver', {TEST}]}}, {{level: Metadata}}]"
        );
        let policy = format!("apiVersion: audit.k8s.io/v1\nkind: Policy\n{rules}\n");
        fs::write(self.path("policy"), policy).unwrap();
        let certificates = self.certificates();
        let Pair { certificate, key } =
            certificates.issue("service accounts", &[], Key::P256, Standing::Valid);
        fs::rename(certificate, self.path("service-accounts.pem")).unwrap();
        fs::rename(key, self.path("service-accounts.key")).unwrap();
    }

    /// The list of requests.
    pub(super) fn audit_log(&self) -> PathBuf {
        self.path("audit")
    }

    pub(super) fn flags(&self) -> Vec<String> {
        let path = |name: &str| self.path(name).display().to_string();
        let Pair { certificate, key } = self.certificates().server();
        let apis = APIS.map(|api| format!("{api}=true")).join(",");
        let mut flags = vec![
            format!("--etcd-servers={}", self.etcd().url()),
            format!("--bind-address={}", self.address().ip()),
            format!("--secure-port={}", self.address().port()),
            "--advertise-address=127.0.0.1".to_owned(),
            "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
            format!("--cert-dir={}", path("generated")),
            format!("--tls-cert-file={}", certificate.display()),
            format!("--tls-private-key-file={}", key.display()),
            format!("--client-ca-file={}", self.authority().display()),
            format!("--token-auth-file={}", path("tokens")),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={}", path("service-accounts.pem")),
            format!("--service-account-signing-key-file={}", path("service-accounts.key")),
            format!("--audit-policy-file={}", path("policy")),
            format!("--audit-log-path={}", self.audit_log().display()),
            // A request is in the list before it is answered.
            "--audit-log-mode=blocking".to_owned(),
            "--endpoint-reconciler-type=none".to_owned(),
            "--storage-media-type=application/json".to_owned(),
            format!("--runtime-config=api/all=false,{apis}"),
            NO_ADMISSION.to_owned(),
            "--enable-priority-and-fairness=false".to_owned(),
            "--watch-cache=false".to_owned(),
            "--enable-garbage-collector=false".to_owned(),
            "--profiling=false".to_owned(),
        ];
        if program::minor_version() < 21 {
            // Later it is there without being asked for: a podCIDR of each family.
            flags.push("--feature-gates=IPv6DualStack=true".to_owned());
        }
        flags.extend(self.options.flags.iter().cloned());
        flags
    }
}
