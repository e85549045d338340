import { homedir } from 'node:os'
import { join } from 'node:path'

const isTrue = (value: string | undefined) => /^(1|on|yes|true)$/i.test(value ?? '')

/** Which variable forbids to ask the hub, as its own client heeds them. */
export function offlineVariable(env: NodeJS.ProcessEnv): string | undefined {
  return ['HF_HUB_OFFLINE', 'TRANSFORMERS_OFFLINE'].find(name => isTrue(env[name]))
}

function expanded(path: string): string {
  return path.replace(/^~(?=$|[\\/])/, homedir())
}

/** The token file of Hugging Face's own client. */
export function tokenFile(env: NodeJS.ProcessEnv): string {
  if (env.HF_TOKEN_PATH) return expanded(env.HF_TOKEN_PATH)
  const cache = env.XDG_CACHE_HOME ? expanded(env.XDG_CACHE_HOME) : join(homedir(), '.cache')
  return join(env.HF_HOME ? expanded(env.HF_HOME) : join(cache, 'huggingface'), 'token')
}

/** Where a token is looked for besides the settings. */
export function tokenSources(setting: string, env: NodeJS.ProcessEnv) {
  const implicit = !isTrue(env.HF_HUB_DISABLE_IMPLICIT_TOKEN)
  return {
    setting,
    variables: implicit ? ['HF_TOKEN', 'HUGGING_FACE_HUB_TOKEN'] : [],
    file: implicit ? tokenFile(env) : undefined
  }
}
