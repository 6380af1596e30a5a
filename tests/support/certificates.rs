//! Certificates for tests, made by openssl. Needs nothing of the other test support.

#![allow(
    dead_code,
    missing_docs,
    clippy::unwrap_used,
    reason = "test support; each test file uses a part of it"
)]

use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// The common name of the client certificates.
pub const CLIENT: &str = "ipam";

/// A certificate with its key, both as PEM.
#[derive(Clone, Debug)]
pub struct Pair {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// Two authorities and what they have signed, in a folder of their own. Keys are ECDSA P-256 in
/// PKCS#8 where nothing else is said.
pub struct Certificates {
    folder: TempDir,
}

impl Certificates {
    /// Makes all of them; the server's is for 127.0.0.1 and localhost.
    #[track_caller]
    pub fn make() -> Self {
        Self::make_for(&[])
    }

    /// Makes all of them; the server's is for these addresses too.
    #[track_caller]
    pub fn make_for(addresses: &[IpAddr]) -> Self {
        let this = Self { folder: TempDir::new().unwrap() };
        fs::write(this.path("settings"), this.settings(addresses)).unwrap();
        for authority in ["authority", "other-authority"] {
            this.make_authority(authority);
        }
        this.generate("server");
        this.sign("authority", "server", "server", "/O=ipam-delegated tests", VALID);
        let client = format!("/CN={CLIENT}");
        for (authority, name, time) in [
            ("authority", "client", VALID),
            ("authority", "expired-client", EXPIRED),
            ("other-authority", "other-client", VALID),
        ] {
            this.generate(name);
            this.sign(authority, name, "client", &client, time);
        }
        this.openssl("genrsa -traditional -out rsa-client.key 2048");
        this.sign("authority", "rsa-client", "client", &client, VALID);
        this
    }

    /// The certificate of the authority that signed all but [`Certificates::other_client`].
    pub fn authority(&self) -> PathBuf {
        self.path("authority.pem")
    }

    /// The certificate of an authority that nobody has to trust.
    pub fn other_authority(&self) -> PathBuf {
        self.path("other-authority.pem")
    }

    pub fn server(&self) -> Pair {
        self.pair("server")
    }

    pub fn client(&self) -> Pair {
        self.pair("client")
    }

    /// A client's certificate with an RSA key in PKCS#1.
    pub fn rsa_client(&self) -> Pair {
        self.pair("rsa-client")
    }

    /// A client's certificate that was valid in January 2020.
    pub fn expired_client(&self) -> Pair {
        self.pair("expired-client")
    }

    /// A client's certificate of the other authority.
    pub fn other_client(&self) -> Pair {
        self.pair("other-client")
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn pair(&self, name: &str) -> Pair {
        let [certificate, key] = ["pem", "key"].map(|end| self.path(&format!("{name}.{end}")));
        Pair { certificate, key }
    }

    /// A configuration of its own: the machine's may say anything.
    fn settings(&self, addresses: &[IpAddr]) -> String {
        let mut names = "IP:127.0.0.1,DNS:localhost".to_owned();
        addresses.iter().for_each(|address| write!(names, ",IP:{address}").unwrap());
        let mut text = format!(
            "[req]\ndistinguished_name = no_questions\nprompt = no\n[no_questions]\n\
             [signing]\nbasicConstraints = critical,CA:TRUE\nkeyUsage = critical,keyCertSign,cRLSign\n\
             subjectKeyIdentifier = hash\n\
             [server]\nbasicConstraints = critical,CA:FALSE\nkeyUsage = critical,digitalSignature\n\
             extendedKeyUsage = serverAuth,clientAuth\nsubjectAltName = {names}\n\
             [client]\nbasicConstraints = critical,CA:FALSE\nkeyUsage = critical,digitalSignature\n\
             extendedKeyUsage = clientAuth\n\
             [any]\ncommonName = optional\norganizationName = optional\n"
        );
        for name in ["authority", "other-authority"] {
            write!(
                text,
                "[{name}]\ndatabase = {name}.index\nnew_certs_dir = .\ncertificate = {name}.pem\n\
                 private_key = {name}.key\nrand_serial = yes\nunique_subject = no\n\
                 default_md = sha256\npolicy = any\n"
            )
            .unwrap();
        }
        text
    }

    #[track_caller]
    fn make_authority(&self, name: &str) {
        self.generate(name);
        fs::write(self.path(&format!("{name}.index")), "").unwrap();
        self.openssl(&format!(
            "req -x509 -new -config settings -extensions signing -key {name}.key -subj /CN={name} \
             -days 2 -out {name}.pem"
        ));
    }

    #[track_caller]
    fn generate(&self, name: &str) {
        self.openssl(&format!(
            "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out {name}.key"
        ));
    }

    #[track_caller]
    fn sign(&self, authority: &str, name: &str, kind: &str, subject: &str, time: &str) {
        let request = format!("req -new -config settings -key {name}.key -out {name}.csr -subj");
        self.run(request.split(' ').chain([subject]));
        self.openssl(&format!(
            "ca -batch -notext -config settings -name {authority} -extensions {kind} {time} \
             -in {name}.csr -out {name}.pem"
        ));
    }

    #[track_caller]
    fn openssl(&self, arguments: &str) {
        self.run(arguments.split_whitespace());
    }

    #[track_caller]
    fn run<'a>(&self, arguments: impl Iterator<Item = &'a str>) {
        let mut command = Command::new("openssl");
        command.args(arguments).current_dir(self.folder.path());
        // A machine's own configuration may not hinder the programs that read none.
        command.env("OPENSSL_CONF", "/dev/null").env("RANDFILE", "random");
        let output = command.output().unwrap_or_else(|error| match error.kind() {
            ErrorKind::NotFound => panic!("openssl is missing: apt-get install openssl"),
            _ => panic!("openssl: {error}"),
        });
        assert!(output.status.success(), "{command:?}: {output:?}");
    }
}

const VALID: &str = "-days 2";
const EXPIRED: &str = "-startdate 20200101000000Z -enddate 20200102000000Z";
