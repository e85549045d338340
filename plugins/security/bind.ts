import { ConfigError } from '../../core/config/problems.ts'
import { isLoopbackHost } from './addresses.ts'

/** Who may reach the server: only programs of this machine, or others too; those with or without a key. */
export type Exposure = 'local' | 'keys' | 'open'

/**
 * Judges an address to listen on.
 * @param setting the path of the setting that names it
 * @throws ConfigError when everybody in the network could use the server and nobody has said that they may
 */
export function judgeBind(host: string, options: { keys: number; insecure: boolean }, setting = 'host'): Exposure {
  if (isLoopbackHost(host)) return 'local'
  if (options.keys > 0) return 'keys'
  if (options.insecure) return 'open'
  throw new ConfigError([
    {
      where: setting,
      setting,
      message: `Listening on ${host} lets every machine that can reach it use this server, and no API key protects it. Set keys in security.api_keys (or CORRAL_API_KEYS), or listen on 127.0.0.1, or say that this is wanted with security.insecure: true (or CORRAL_INSECURE=1).`
    }
  ])
}
