//! Certificates for tests, made by openssl.

use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use tempfile::TempDir;

/// The common name of the client certificates.
pub const CLIENT: &str = "ipam";

/// A certificate with its key, both as PEM.
#[derive(Clone, Debug)]
pub struct Pair {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// A kind of key, and the form it is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// ECDSA P-256 in PKCS#8.
    P256,
    /// ECDSA P-256 in SEC1.
    P256Sec1,
    /// RSA in PKCS#8.
    Rsa,
    /// RSA in PKCS#1.
    RsaPkcs1,
}

/// What is to be thought of a client's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Valid,
    /// It was valid in January 2020.
    Expired,
    /// The other authority signed it.
    Strange,
}

/// Two authorities and what they have signed, in a folder of their own. Keys are ECDSA P-256 in
/// PKCS#8 where nothing else is said.
pub struct Certificates {
    folder: TempDir,
    /// How many were issued; an authority signs one at a time.
    issued: Mutex<u32>,
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
        Self::make_in(TempDir::new().unwrap(), addresses)
    }

    /// The same in a folder that is theirs from now on.
    #[track_caller]
    pub fn make_in(folder: TempDir, addresses: &[IpAddr]) -> Self {
        let this = Self { folder, issued: Mutex::default() };
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

    /// A client's certificate for this common name and these organizations.
    #[track_caller]
    pub fn issue(&self, name: &str, organizations: &[&str], key: Key, standing: Standing) -> Pair {
        let mut issued = self.issued.lock().unwrap_or_else(PoisonError::into_inner);
        *issued += 1;
        let file = format!("issued-{issued}");
        self.openssl(&match key {
            Key::P256 => format!("{P256} -out {file}.key"),
            Key::P256Sec1 => format!("ecparam -name prime256v1 -genkey -noout -out {file}.key"),
            Key::Rsa => format!("genpkey -algorithm RSA -out {file}.key"),
            Key::RsaPkcs1 => format!("genrsa -traditional -out {file}.key 2048"),
        });
        let mut subject = String::new();
        let parts = organizations.iter().map(|name| ("O", *name)).chain([("CN", name)]);
        for (kind, value) in parts {
            write!(subject, "/{kind}={}", value.replace('/', "\\/").replace('+', "\\+")).unwrap();
        }
        let (authority, time) = match standing {
            Standing::Valid => ("authority", VALID),
            Standing::Expired => ("authority", EXPIRED),
            Standing::Strange => ("other-authority", VALID),
        };
        self.sign(authority, &file, "client", &subject, time);
        self.pair(&file)
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
        self.openssl(&format!("{P256} -out {name}.key"));
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

const P256: &str = "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256";
const VALID: &str = "-days 2";
const EXPIRED: &str = "-startdate 20200101000000Z -enddate 20200102000000Z";
