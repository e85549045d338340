import { stat } from 'node:fs/promises'
import type { LoadedConfig } from './load.ts'

/** A warning if the configuration file contains API keys and other users can read it. */
export async function exposedKeysWarning({
  file,
  origins,
  sections
}: Pick<LoadedConfig, 'file' | 'origins' | 'sections'>): Promise<string | undefined> {
  const origin = origins['security.api_keys'] ?? 'default'
  // Windows does not use mode bits.
  if (file === undefined || origin === 'default' || origin.startsWith('env ') || process.platform === 'win32') {
    return undefined
  }
  // The default config.yaml has an empty list.
  const keys = sections.security?.api_keys
  if (!Array.isArray(keys) || keys.length === 0) return undefined
  const { mode } = await stat(file)
  if ((mode & 0o077) === 0) return undefined
  return `Other users of this machine can read the API keys in ${file}. Run "chmod 600 ${file}", or create keys with "corral key create", which stores only hashes.`
}
