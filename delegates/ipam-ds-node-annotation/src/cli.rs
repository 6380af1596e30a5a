//! The commands for people.

use std::ffi::OsString;

use ipam_kit::cni::{parse_object, parse_value};
use ipam_kit::delegate::{CliCall, Deadline, selector_keys};
use ipam_kit::{Error, ErrorCode, Result};
use ipam_kube::own_node::{NodeKeys, NodeObject, NodeSettings, OwnNode};
use serde_json::{Map, Value};

use crate::annotation::{AnnotationConfig, of_node, parse, value_of};
use crate::conf::Conf;
use crate::log_file::logged;

const HELP: &str = "
 node-annotation --

Commands:

  ipam
    Act as an ipam CNI-plugin. This is the default command
    Read a network configuration from stdin, replace its ipam by the settings of the annotation
    and print it; as node-annotation, pass it to the next program
  error_quit [msg]
    Print an error in standard CNI json format and quit
  my_node
    Print the own node object
  get_annotation [--node=node] <annotation>
    Print the value of the annotation in the K8s node object
  -h, help
    Print this text

Credentials for the API server, first match: kubeconfig of the network configuration, kubeconfig
of /etc/cni/node-annotation.conf (or of the file in $NODE_ANNOTATION_CFG), $KUBECONFIG, a pod's
service account, ~/.kube/config. ipam-ds-node-annotation has the same commands; its ipam prints.
";

/// Expands the arguments: no argument means `ipam`, which reads stdin. Commands for programs fail with
/// an error object.
pub(crate) fn expand_args(mut typed: Vec<OsString>) -> Vec<OsString> {
    if typed.is_empty() {
        typed.push("ipam".into());
    }
    let more: &[&str] = match typed[0].to_str() {
        Some("ipam") => &["-", "--json"],
        Some("error_quit" | "my_node" | "get_annotation") => &["--json"],
        _ => &[],
    };
    typed.extend(more.iter().map(OsString::from));
    typed
}

/// Answers a command with what it prints.
///
/// # Errors
/// The command is unknown, or fails.
pub(crate) fn answer(call: &CliCall) -> Result<String> {
    let words: Vec<&str> = call.arguments.iter().filter_map(|word| word.to_str()).collect();
    let (command, operands) =
        words.split_first().map_or(("", &[][..]), |(first, rest)| (*first, rest));
    let operands: Vec<&str> =
        operands.iter().copied().filter(|word| !matches!(*word, "-" | "--json")).collect();
    match (command, &operands[..]) {
        ("-h" | "--help" | "help", _) => Ok(HELP.to_owned()),
        ("error_quit", said) => {
            let said = if said.is_empty() { call.name.to_owned() } else { said.join(" ") };
            Err(Error::new(ErrorCode::TRY_AGAIN, format!("FAILED: {said}")))
        }
        ("ipam", []) => ipam(call),
        ("my_node", []) => {
            let node = open(call, Conf::load(&call.environment)?.settings)?.read()?;
            Ok(format!("{:#}\n", node.object))
        }
        ("get_annotation", [name]) if !name.starts_with('-') => annotation(call, None, name),
        ("get_annotation", [option, name]) if option.starts_with("--node=") => {
            annotation(call, option.strip_prefix("--node="), name)
        }
        _ => {
            let mut typed = vec![command];
            typed.extend(operands);
            let message = format!("unknown command {:?}", typed.join(" "));
            Err(Error::new(ErrorCode::INVALID_CONFIG, message)
                .advise(format!("run {} -h for the list of commands", call.name)))
        }
    }
}

/// Prints the configuration as the next delegate gets it.
fn ipam(call: &CliCall) -> Result<String> {
    let mut network = parse_object(&call.stdin, "the network configuration on stdin")?;
    let ipam = network.get("ipam").cloned().unwrap_or_default();
    let config: AnnotationConfig =
        parse_value::<Option<AnnotationConfig>>(&ipam, "ipam")?.unwrap_or_default();
    let keys: NodeKeys = parse_value::<Option<NodeKeys>>(&ipam, "ipam")?.unwrap_or_default();
    let conf = Conf::load(&call.environment)?;
    let name = config.annotation()?;
    let settings = keys.read("ipam.")?.or(conf.settings.clone());
    let mut settings = logged(conf.log.as_deref(), name, read_settings(call, settings, name))?;
    settings.insert("type".to_owned(), conf.next_name().into());
    network.insert("ipam".to_owned(), Value::Object(settings));
    Ok(format!("{:#}\n", Value::Object(network)))
}

/// The settings in the annotation of this node, without `type`, which the next program sets.
fn read_settings(call: &CliCall, settings: NodeSettings, name: &str) -> Result<Map<String, Value>> {
    let node = open(call, settings)?.read()?;
    let value = value_of(node.annotation(name), &node.name, name)?;
    let mut settings = parse(&value, &node.name, name)?;
    settings.remove("type");
    selector_keys::refuse_forbidden(&settings, &call.settings, false, "")
        .map_err(|error| error.within(of_node(&node.name, name)))?;
    Ok(settings)
}

fn annotation(call: &CliCall, node: Option<&str>, name: &str) -> Result<String> {
    let own = open(call, Conf::load(&call.environment)?.settings)?;
    let node: NodeObject = match node {
        None | Some("") => own.read()?,
        Some(other) => own.read_other(other)?,
    };
    Ok(format!("{}\n", value_of(node.annotation(name), &node.name, name)?))
}

fn open(call: &CliCall, settings: NodeSettings) -> Result<OwnNode> {
    let deadline = Deadline::after(Deadline::DEFAULT);
    OwnNode::new(settings, &call.environment, &call.settings, ErrorCode::UNREACHED, deadline)
}

#[cfg(test)]
mod tests {
    use ipam_kit::cni::Environment;
    use ipam_kit::host::Settings;

    use super::*;

    fn call(words: &[&str]) -> Result<String> {
        answer(&CliCall {
            name: "ipam-ds-node-annotation",
            arguments: expand_args(words.iter().map(OsString::from).collect()),
            stdin: Vec::new(),
            environment: Environment::new([("NODE_ANNOTATION_CFG", "/nowhere/conf")]),
            settings: Settings::default(),
        })
    }

    #[test]
    fn the_help_names_every_command() {
        for word in ["-h", "help", "--help"] {
            let text = call(&[word]).unwrap();
            for command in ["ipam\n", "error_quit [msg]", "my_node", "get_annotation [--node=node]"]
            {
                assert!(text.contains(command), "{text}");
            }
        }
    }

    #[test]
    fn what_is_wrong_is_said_before_anybody_is_asked() {
        for (words, code, message) in [
            (&["error_quit"][..], 11, "FAILED: ipam-ds-node-annotation"),
            (&["error_quit", "no", "way"], 11, "FAILED: no way"),
            (&[], 6, "the network configuration on stdin is empty"),
            (&["frob"], 7, "unknown command \"frob\""),
            (&["get_annotation"], 7, "unknown command \"get_annotation\""),
            (&["get_annotation", "--frob", "a"], 7, "unknown command \"get_annotation --frob a\""),
        ] {
            let error = call(words).unwrap_err();
            assert_eq!(error.code().number(), code, "{error}");
            assert_eq!(error.to_string(), message);
        }
    }
}
