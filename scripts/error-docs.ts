import { ERROR_STATUS, type ErrorCode } from '../core/errors.ts'

/** Advice for each error code. The error's own message has the names and numbers. */
const ADVICE: Record<ErrorCode, string> = {
  invalid_json: 'The body is not valid JSON. The message names the position of the error.',
  missing_body: 'The request needs a JSON body.',
  invalid_request:
    'A field is missing or has the wrong type. The message and `param` name it. `/docs` describes the body.',
  invalid_model_name: 'Names are `owner/name`, optionally with `:variant`. See [names](models.md#names).',
  invalid_option: 'The message names the option and its allowed values.',
  context_exceeded:
    'The prompt is longer than `num_ctx`. The message has both numbers and says whether a larger `num_ctx` helps: a model cannot use a larger context than it was trained for. Alternatively, [drop the oldest messages](api.md#conversations-that-are-too-long).',
  unsupported_capability:
    'The model lacks a capability that the request needs. The message and `corral show` list its capabilities.',
  over_limit:
    'The message names the limit, its value and the requested value. An admin can raise it for everyone, for a model or for a key.',
  input_blocked: 'A grammar, schema or template crashed its engine twice and is rejected for ten minutes. Simplify it.',
  unauthorized: 'The key is missing or wrong. Create one with `corral key create`.',
  origin_not_allowed: 'The server rejects requests from unknown web pages. Add the page to `security.origins`.',
  host_not_allowed: 'The server does not know the host name of the request. Add it to `security.hosts`.',
  forbidden_role:
    'The key lacks the role that the message names. Create one with that role: `corral key create`. [Roles of all routes](roles.md).',
  forbidden_model: 'The key may not use this model. `corral key list` shows the allowed models.',
  address_not_allowed:
    'Clients on the network can only pull models from public servers. Pull on the server itself, or see `downloads.private_addresses`.',
  path_not_allowed:
    'Clients on the network can only import files from `storage.import_roots`. Import on the server itself.',
  link_refused:
    'The link of `corral open` only works in a browser of the same user. `corral open --print` makes one for other browsers.',
  hub_forbidden:
    'The repository is private or gated. The message says where to accept its terms and which token to set.',
  model_not_found:
    'There is no such model on this server. `corral list` shows its models, `corral search` finds others, and `corral pull` downloads them.',
  model_not_loaded: 'The model is not loaded, so there is nothing to stop.',
  repo_not_found: 'The hub has no such repository, or hides it. Check the spelling, or set a token.',
  runtime_not_found: '`corral runtime list` shows the builds and their ids.',
  response_not_found:
    'Responses are stored in memory, and only for the key that created them. Send the whole conversation.',
  file_not_found: 'Files belong to the key that uploaded them and expire (`api-batches.keep`).',
  batch_not_found: 'Batches belong to the key that created them and expire after they end (`api-batches.keep`).',
  stream_not_found:
    'The answer has ended, was disconnected for longer than `limits.resume`, or is not resumable. Send the request again.',
  key_not_found: '`corral key list` shows the keys.',
  capture_not_found: '`corral capture list` shows the captures.',
  session_not_found: 'The session has ended, or the request has no session. `GET /api/sessions` lists all sessions.',
  conversation_not_found: 'The conversation was deleted, or belongs to another key.',
  machine_not_found: '`corral link list` lists the linked machines.',
  machine_unreachable:
    'The other machine was not found, or cannot be reached. The message says why. See [linked machines](link.md#problems).',
  pairing_code_wrong: 'The code is wrong, used or expired. `corral link` on the other machine shows a new one.',
  member_not_found: '`GET /api/cluster` and `corral cluster status` list the members.',
  rollout_running:
    'A rollout updates the members, perhaps of another gateway. `corral rollout status` shows it. Wait for its end, or undo it.',
  rollout_not_found: 'No rollout is in a state that this can change. `corral rollout status` shows the last one.',
  copy_failed:
    'A model could not be copied between cluster members. Send the request again: the copied part is kept. `GET /api/cluster` shows which members can be reached. `corral pull` on the target member downloads the model from its hub instead.',
  member_unreachable:
    'The member failed to perform the request. If it cannot be reached, `GET /api/cluster` shows the reason.',
  conversations_off: 'The page stores conversations in the browser, unless `web.conversations` is `server`.',
  route_not_found: 'There is nothing at this address. [Programs](programs.md) lists the base URLs.',
  method_not_allowed: 'The address supports other methods. The header `Allow` lists them.',
  websocket_refused:
    'The path offers no WebSocket, or only WebSockets. Codex and other clients that get this status use HTTP instead.',
  reader_stalled: 'The client stopped reading its answer for longer than `limits.reader_stall`.',
  model_exists: 'The name is already used. Choose another one, or remove that model first.',
  pull_cancelled: 'The pull was cancelled. Pull again to start over.',
  stream_cancelled: 'The answer was stopped by another request. Send the request again.',
  runtime_in_use: 'Choose another build (`corral runtime use`) or stop its models before you remove it.',
  key_exists: 'The name is already used. `corral key rotate` gives that key a new secret.',
  trial_running:
    'Someone is measuring this model with other settings (`corral bench`). Wait until the measurement has ended.',
  file_in_use: 'An unfinished batch reads the file. Cancel the batch first, or wait.',
  batch_ended: 'The batch has ended, so there is nothing to cancel.',
  invalid_config: '`corral config check` shows each error with line and column. The previous settings stay in force.',
  conversation_changed:
    'Another tab or machine changed the conversation first. Read it again, and send your change with the version in the reply.',
  config_not_editable:
    'The file is read-only, or its anchors prevent changing one model without others. Edit it by hand, then run `corral reload`.',
  settings_changed:
    'Someone else has changed the settings since you read them. Read them again, and send your change again.',
  link_ended: 'A link of `corral open` works once, within a minute. Run the command again.',
  body_too_large:
    'The body is larger than `body_limit`, the limit of the address or `limits.body_memory_per_client`, or it is compressed more than a hundredfold. The message says which.',
  unsupported_encoding: 'The compression of the body is not supported. The message lists the supported encodings.',
  rate_limited: 'A rate limit was reached. The message names it, and `Retry-After` says when to try again.',
  load_failed:
    'The message names the cause ([all causes](failures.md)); `corral logs <model>` shows what llama-server printed.',
  engine_crashed: 'The message names the cause ([all causes](failures.md)). Send the request again.',
  engine_unreachable:
    'The machine that answers for the model cannot be reached: a remote server, a node or an RPC worker. Start it, or try again after `Retry-After`.',
  conversion_not_installed:
    'A SafeTensors model must be converted, but the Python packages for that are not installed. Install them once with `corral conversion install` (several GB), or set `conversion.install: auto` to let any client trigger the installation.',
  conversion_failed: 'The message names the cause, and the log of the tools.',
  reload_failed:
    'The settings are valid, but could not be applied. The message says why. The previous settings stay in force.',
  hook_timeout: 'The message names the plugin and its hook. Fix or remove the plugin, or raise `limits.hook_timeout`.',
  internal: 'A bug in corral. See the log for details. `corral serve --log-level debug` logs even more.',
  not_implemented: 'corral does not support this, and rejects the request instead of ignoring it.',
  hub_unreachable: 'The message has the hub and the reason. Set mirrors and proxies per hub in `config.yaml`.',
  checksum_mismatch:
    "The downloaded data does not match the hub's digest, even after another try, and was deleted. Pull again. If it fails again, check proxies between you and the hub.",
  too_busy:
    'Bodies of active requests use all of the allowed memory, yours or that of all clients. Try again after `Retry-After`, or raise `limits.body_memory`.',
  queue_full:
    'Too many requests are queued for this model. Try again after `Retry-After`, or raise `scheduler.max_queue`.',
  hub_rate_limited: 'The hub limits requests. Wait, or use a token, which often raises the limit.',
  runtime_missing:
    'corral found no working llama.cpp. `corral doctor` names what is missing and the command that installs it.',
  insufficient_memory:
    'The message has the numbers and suggestions: a smaller `num_ctx`, fewer `num_parallel`, a `q8_0` cache, a smaller quantization, or stopping another model. [Memory](memory.md).',
  model_stopped: 'The model was stopped during the answer. Send the request again.',
  model_deleted: 'The model was deleted during the answer.',
  shutting_down: 'The server is shutting down. Send the request again after it has restarted.',
  tools_unavailable:
    'A server of tools did not start or does not answer. The message says why, and `corral mcp check` shows it.',
  draining: 'The server is about to be stopped. Try again in a moment. `corral drain --undo` cancels this.',
  load_timeout: 'Loading made no progress for `runtimes.load_timeout`. `corral logs <model>` shows how far it got.',
  storage_not_writable:
    'The models folder or the data directory is on a read-only file system, or belongs to another user. Make it writable for the user who runs corral, or choose another folder with CORRAL_MODELS or CORRAL_HOME.',
  insufficient_storage: 'The message has both numbers. The downloaded part is kept. Free some space and pull again.'
}

const INTRODUCTION = `# Troubleshooting

Start with \`corral doctor\`. It shows the hardware, what works, and how to fix the rest.

\`\`\`sh
corral doctor
corral logs corral/tiny-chat     # what the model's engine printed, and why it ended
\`\`\`

## Common problems

| problem | solution |
|---|---|
| a request waits and says \`building llama.cpp 40%\` | The first start compiles llama.cpp, once. \`corral doctor\` shows the progress. |
| \`Port 11435 … is taken\` | Another program uses this port. Stop it, or choose another port (\`--port\`, \`CORRAL_PORT\`). |
| the data directory is in use by another process | Only one server can use a data directory. The message names the process. |
| a GPU is not used | \`corral doctor\` shows why each kind of build cannot use it, and the command that fixes this. See [GPUs](gpus.md). |
| the first answer takes long, later ones do not | The first request loads the model. Set \`preload: true\` in its [section](configuration.md#models), or a longer \`keep_alive\`. |
| an answer ends in the middle of a sentence | The answer reached \`max_tokens\` (\`finish_reason\` is \`length\`). Raise it. |
| every message in Open WebUI is answered with \`context_exceeded\` | Its built-in tools fill the context. See [Open WebUI](programs.md#open-webui). |
| an option changes nothing | Its name may be misspelt. The reply's header \`X-Corral-Unknown-Options\` and \`corral config check\` list unknown options, and \`limits.strict_options\` rejects them. |
| a model is not found by its short name | \`corral list\` shows the full names. See [names](models.md#names). |
| a program cannot connect from a container | In a container, \`localhost\` is the container itself. See [Open WebUI in Docker](programs.md#open-webui). |
| a program has no list of models | Its base URL is wrong. See [programs](programs.md). |
| anything else | Read the log. \`corral serve\` writes it to standard output, with more details at \`--log-level debug\`. |

## Error codes

Each error has a status, a stable code and a message that says what to do in this case.

| code | status | what to do |
|---|---|---|
`

export function renderErrorDocs(): { 'troubleshooting.md': string } {
  const rows = Object.entries(ERROR_STATUS).map(
    ([code, status]) => `| \`${code}\` | ${status} | ${ADVICE[code as ErrorCode]} |`
  )
  return { 'troubleshooting.md': `${INTRODUCTION}${rows.join('\n')}\n` }
}
