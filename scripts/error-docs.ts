import { ERROR_STATUS, type ErrorCode } from '../core/errors.ts'

/** What somebody who meets a code can do. The error's own sentence has the names and numbers of the case. */
const ADVICE: Record<ErrorCode, string> = {
  invalid_json: 'The body is no JSON; the message names the place.',
  missing_body: 'The request needs a body of JSON.',
  invalid_request: 'A field is missing or of the wrong kind; the message and `param` name it. `/docs` shows the body.',
  invalid_model_name: 'Names are `owner/name`, optionally with `:variant`; see [names](models.md#names).',
  invalid_option: 'The message names the option and the values that it takes.',
  context_exceeded:
    'The prompt is longer than `num_ctx`; both numbers are in the message. It also says if a larger `num_ctx` helps: a model has no larger context than it was trained for. Or [let the oldest turns go](api.md#conversations-that-are-too-long).',
  unsupported_capability:
    'The model cannot do what the request needs. The message lists what it can do, as does `corral show`.',
  over_limit:
    'The message names the limit, its value and what was asked for. An admin may raise it for all, for a model or for a key.',
  input_blocked: 'A grammar, schema or template ended its engine twice; it is refused for ten minutes. Simplify it.',
  unauthorized: 'A key is missing or wrong. `corral key create` makes one.',
  origin_not_allowed:
    'The server protects itself against web pages that are not yours: add the page to `security.origins`.',
  host_not_allowed: 'The server was called by a name that it does not know: add it to `security.hosts`.',
  forbidden_role:
    'The key may not do this: `corral key create` makes one with the role that the message names. [Who may call what](roles.md).',
  forbidden_model: 'The key may not use this model: `corral key list` shows which it may.',
  address_not_allowed:
    'Over the network, models come from public servers only: pull on the server itself, or see `downloads.private_addresses`.',
  path_not_allowed:
    'Over the network, files are imported from `storage.import_roots` only: import on the server itself.',
  link_refused:
    'The link of `corral open` is for a browser of the same user; `corral open --print` makes one for others.',
  hub_forbidden:
    'The repository is private or gated. The message says where to accept its terms, and which token to set.',
  model_not_found:
    'No such model is here. `corral list` shows those that are; `corral search` finds others, `corral pull` gets them.',
  model_not_loaded: 'The model is not in memory, so there is nothing to stop.',
  repo_not_found: 'The hub has no such repository, or hides it: check the spelling, or set a token.',
  runtime_not_found: '`corral runtime list` shows the builds and their ids.',
  response_not_found:
    'Stored responses are kept in memory, and only for the key that made them. Send the whole conversation.',
  file_not_found: 'Files belong to the key that sent them, and go some time after they came (`api-batches.keep`).',
  batch_not_found: 'Batches belong to the key that made them, and go some time after their end (`api-batches.keep`).',
  stream_not_found:
    'The answer has ended, or was lost for longer than `limits.resume`, or was never one that can be continued. Send the request again.',
  key_not_found: '`corral key list` shows the keys.',
  capture_not_found: '`corral capture list` shows the captures.',
  session_not_found: 'The session has ended, or the request came by none. `GET /api/sessions` lists those there are.',
  conversation_not_found: 'The conversation was deleted, or belongs to another key.',
  member_not_found: '`GET /api/cluster` lists the members, `corral cluster status` too.',
  copy_failed:
    'A model could not be copied from one member to another. Send the request again: what has come is kept. `GET /api/cluster` says which members can be reached; `corral pull` at the member that lacks the model fetches it from its hub.',
  member_unreachable:
    'The member did not do what was asked of it. `GET /api/cluster` says why it cannot be reached, if so.',
  conversations_off: 'The page keeps conversations in browsers, unless `web.conversations` is `server`.',
  route_not_found: 'There is nothing at this address; [programs](programs.md) lists the base addresses.',
  method_not_allowed: 'The address takes other methods; the header `Allow` lists them.',
  reader_stalled: 'The client read nothing of its answer for `limits.reader_stall`.',
  model_exists: 'The name is taken. Choose another one, or remove that model first.',
  pull_cancelled: 'Somebody cancelled the pull. Pull again to begin anew.',
  stream_cancelled: 'The answer was ended by a request for that, while it was read. Send the request again.',
  runtime_in_use: 'Choose another build (`corral runtime use`) or stop its models before you remove it.',
  key_exists: 'The name is taken: `corral key rotate` gives that key a new secret.',
  trial_running: 'Somebody measures this model with other settings (`corral bench`): wait until that has ended.',
  file_in_use: 'A batch that has not ended reads the file: cancel it first, or wait.',
  batch_ended: 'The batch has ended, so there is nothing to cancel.',
  invalid_config: '`corral config check` shows each mistake with line and column. The former settings stay in force.',
  conversation_changed:
    'Another tab or machine was quicker: read the conversation again, and send it with the version that the reply names.',
  config_not_editable:
    'The file is read-only, or written so that one model cannot be changed without others (anchors): change it by hand, then `corral reload`.',
  settings_changed: 'Somebody else changed them since they were read. Read them again, and send the change anew.',
  link_ended: 'A link of `corral open` works once, for a minute: run it again.',
  body_too_large:
    'The body is larger than `body_limit`, than the address takes or than `limits.body_memory_per_client`, or it is compressed more than a hundredfold; the message says which.',
  unsupported_encoding:
    'The body is compressed in a way that corral does not read; the message lists those that it does.',
  rate_limited: 'A limit in time was reached. The message says which, `Retry-After` when it is refilled.',
  load_failed:
    'The message names the cause ([all causes](failures.md)); `corral logs <model>` shows what llama-server printed.',
  engine_crashed: 'The message names the cause ([all causes](failures.md)). Send the request again.',
  conversion_not_installed:
    'A SafeTensors model has to be converted, and the Python packages for that are not installed. `corral conversion install` installs them once (some GB); `conversion.install: auto` lets every client cause it.',
  conversion_failed: 'The message names the cause, and the log that the tools wrote.',
  reload_failed: 'The settings are valid, but could not be put in force; the message says why. The former ones stay.',
  hook_timeout: 'The message names the plugin and its hook. Fix or remove the plugin, or raise `limits.hook_timeout`.',
  internal: 'A fault of corral. The log has more; `corral serve --log-level debug` still more.',
  not_implemented: 'corral does not do this, and will not pretend to.',
  hub_unreachable: 'The hub and the reason are in the message; mirrors and proxies are set per hub in `config.yaml`.',
  checksum_mismatch:
    'What arrived is not what the hub announced, even after another try; nothing of it is kept. Pull again; if it fails again, check proxies between you and the hub.',
  too_busy:
    'Bodies of requests that are not answered yet take all the memory that they may have, yours or those of all clients: try again after `Retry-After`, or raise `limits.body_memory`.',
  queue_full: 'Too many requests wait for this model: try again after `Retry-After`, or raise `scheduler.max_queue`.',
  hub_rate_limited: 'The hub asks to wait. A token often raises its limits.',
  runtime_missing:
    'corral found no llama.cpp that works. `corral doctor` names what is missing and the command that installs it.',
  insufficient_memory:
    'The numbers and what would help are in the message: a smaller `num_ctx`, fewer `num_parallel`, a `q8_0` cache, a smaller quantization, another model stopped. [Memory](memory.md).',
  model_stopped: 'Somebody stopped the model during the answer. Send the request again.',
  model_deleted: 'Somebody deleted the model during the answer.',
  shutting_down: 'The server ends. Send the request again once it is back.',
  draining: 'The server is about to be stopped: try again in a moment. `corral drain --undo` ends it.',
  load_timeout: 'Loading made no progress for `runtimes.load_timeout`. `corral logs <model>` shows how far it got.',
  storage_not_writable:
    'The models folder or the data directory is on a read-only file system, or belongs to another user. Make it writable for the user that runs corral, or choose another folder with CORRAL_MODELS or CORRAL_HOME.',
  insufficient_storage: 'Both numbers are in the message. What was fetched is kept: free some space and pull again.'
}

const INTRODUCTION = `# Troubleshooting

Begin with \`corral doctor\`: it shows what the machine has, what works, and what to do about the rest.

\`\`\`sh
corral doctor
corral logs corral/tiny-chat     # what the model's engine printed, and why it ended
\`\`\`

## What people meet

| what you see | what to do |
|---|---|
| a request waits and says \`building llama.cpp 40%\` | The first start compiles llama.cpp; \`corral doctor\` shows progress. It happens once. |
| \`Port 11435 … is taken\` | Another program listens there: stop it, or choose another port (\`--port\`, \`CORRAL_PORT\`). |
| the data directory is in use by another process | One server per data directory; the message names the process. |
| a GPU is not used | \`corral doctor\` says why each kind of build cannot use it, and the command that fixes it. See [GPUs](gpus.md). |
| the first answer takes long, later ones do not | The model is loaded by its first request: \`preload: true\` in its [section](configuration.md#models), or a longer \`keep_alive\`. |
| an answer ends in the middle of a sentence | \`max_tokens\` was reached (\`finish_reason\` is \`length\`): raise it. |
| every message in Open WebUI is answered with \`context_exceeded\` | Its built-in tools fill the context: see [Open WebUI](programs.md#open-webui). |
| an option changes nothing | Its name may be misspelt: the reply's header \`X-Corral-Unknown-Options\` and \`corral config check\` name such; \`limits.strict_options\` refuses them. |
| a model is not found by its short name | \`corral list\` has the whole names; see [names](models.md#names). |
| a program cannot connect from a container | \`localhost\` is the container itself there: see [Open WebUI in Docker](programs.md#open-webui). |
| a program has no list of models | Its base address is wrong: see [programs](programs.md). |
| anything else | The log: \`corral serve\` writes it to standard output, more with \`--log-level debug\`. |

## Error codes

An error has a status, a stable code and a sentence that says what to do in this very case. The codes:

| code | status | what to do |
|---|---|---|
`

/** The guide for when something is wrong, made of the table of codes. Pure. */
export function renderErrorDocs(): { 'troubleshooting.md': string } {
  const rows = Object.entries(ERROR_STATUS).map(
    ([code, status]) => `| \`${code}\` | ${status} | ${ADVICE[code as ErrorCode]} |`
  )
  return { 'troubleshooting.md': `${INTRODUCTION}${rows.join('\n')}\n` }
}
