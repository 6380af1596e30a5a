//! A login: the request that gives a user's token.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ipam_kit::{ErrorCode, Result};
use ipam_servers::{Client, HttpRequest, LoginAnswer, Method, Secret, ServerLogin, escape};
use serde::Deserialize;

use crate::answers::{Envelope, nonsense};
use crate::refusal::refusal;

#[derive(Deserialize)]
struct UserTokenJson {
    token: String,
}

/// Asks for the token of a user. Eleven refused logins block the node for everything.
///
/// # Errors
/// The server cannot be reached, is not phpIPAM, or refuses for another reason than the password.
pub(crate) fn log_in(client: &mut Client, login: &ServerLogin, app: &str) -> Result<LoginAnswer> {
    let pair = format!("{}:{}", login.user, login.password.expose());
    let header = format!("Basic {}", STANDARD.encode(pair));
    let header = Secret::parse(&header, "ipam.phpipam.password")?;
    let path = format!("api/{}/user/", escape(app));
    let answer = client.read(&HttpRequest {
        secrets: &[("Authorization", header)],
        ok_statuses: &[200, 400, 401, 403, 409, 500, 503],
        limit: 16 * 1024,
        ..HttpRequest::new(Method::Post, &path)
    })?;
    let Some(envelope) = Envelope::parse(&answer.body) else {
        return Err(nonsense(format!("HTTP {} to a login", answer.status)));
    };
    if envelope.is(200) {
        // The words of the parser may quote the token.
        return serde_json::from_value(envelope.data.unwrap_or_default())
            .map(|UserTokenJson { token }| LoginAnswer::Token(token))
            .map_err(|_| nonsense("cannot parse the answer to a login".to_owned()));
    }
    let said = client.secrets().shown(envelope.message().as_bytes());
    if !envelope.says("Invalid username or password") {
        return Err(refusal(&envelope, app, true, "a login", &said));
    }
    let advice = "correct username and password in ipam.phpipam, or set a token instead";
    Ok(LoginAnswer::Refused { code: ErrorCode::BACKEND, said, advice })
}
