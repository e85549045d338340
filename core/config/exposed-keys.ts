import { stat } from 'node:fs/promises'
import type { LoadedConfig } from './load.ts'

/** What to say where the configuration file has API keys and others can read it; undefined where all is well. */
export async function exposedKeysWarning({
  file,
  origins,
  sections
}: Pick<LoadedConfig, 'file' | 'origins' | 'sections'>): Promise<string | undefined> {
  const origin = origins['security.api_keys'] ?? 'default'
  // Windows keeps rights elsewhere than in these bits.
  if (file === undefined || origin === 'default' || origin.startsWith('env ') || process.platform === 'win32') {
    return undefined
  }
  // An empty list, as in the config.yaml that comes with corral.
  const keys = sections.security?.api_keys
  if (!Array.isArray(keys) || keys.length === 0) return undefined
  const { mode } = await stat(file)
  if ((mode & 0o077) === 0) return undefined
  return `Other users of this machine can read the API keys in ${file}. Run "chmod 600 ${file}", or make keys with "corral key create", which keeps only hashes.`
}
