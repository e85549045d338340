import { resolve } from 'node:path'
import FLAGS from './server-flags.json' with { type: 'json' }

type Options = Record<string, string | number>

/** A command line of llama-server as settings of a model. */
export interface ServerCommand {
  /** The absolute path of its file, or the name of a repository. */
  model: { path: string } | { pull: string }
  /** For the section of the model. */
  settings: { options: Options; arguments?: string[]; projector?: string }
  /** Flags that corral sets itself. */
  managed: string[]
}

const TARGETS = new Map(
  Object.entries(FLAGS).flatMap(([target, flags]) => flags.split(' ').map(flag => [flag, target] as const))
)
/** Targets that are not load or sampling options. */
const OWN = ['model', 'pull', 'projector', 'noProjector']
/** More layers than any model has, and llama-server's choice. */
const LAYERS: Record<string, number> = { all: 999, auto: -1 }

/**
 * Reads the arguments of llama-server.
 * @param folder relative paths start here
 * @returns settings with the same effect, or the reason why there are none
 */
export function readServerCommand(words: readonly string[], folder: string): ServerCommand | { reason: string } {
  const options: Options = {}
  const found: Record<string, string> = {}
  const list: string[] = []
  const managed: string[] = []
  for (let at = 0; at < words.length; ) {
    const flag = words[at++]!
    const values: string[] = []
    while (at < words.length && !/^--?[a-z]/i.test(words[at]!)) values.push(words[at++]!)
    const target = TARGETS.get(flag)
    const value = values[0] ?? (target === 'noProjector' ? '' : undefined)
    if (target === undefined) return { reason: `corral has no setting for its argument ${flag}` }
    if (target === 'managed') managed.push(flag)
    // Older servers needed no value for it.
    else if (target === 'arguments') list.push(flag, ...(/^(-fa|--flash-attn)$/.test(flag) && !value ? ['on'] : values))
    else if (value === undefined) return { reason: `its argument ${flag} has no value` }
    else if (OWN.includes(target)) found[target] = value
    else options[target] = LAYERS[value] ?? (/^-?[\d.]+$/.test(value) ? Number(value) : value)
  }
  const { model, pull, projector, noProjector } = found
  if (model === undefined && pull === undefined) return { reason: 'it names no model file' }
  shareContext(options)
  return {
    model: model === undefined ? { pull: pull! } : { path: resolve(folder, model) },
    settings: {
      options,
      ...(list.length > 0 && { arguments: list }),
      ...(projector !== undefined && { projector: resolve(folder, projector) }),
      ...(noProjector !== undefined && { projector: '' })
    },
    managed
  }
}

/** llama-server's context is that of all slots together, and without a number of slots they share it. */
function shareContext(options: Options): void {
  const { num_ctx: total, num_parallel: slots } = options
  if (!(Number(slots) > 0)) delete options.num_parallel
  // Without a size it is the model's own context, up to which corral's grows.
  delete options.num_ctx
  if (!(Number(total) > 0)) return
  options.num_parallel ??= 1
  options.num_ctx = Math.floor(Number(total) / Number(options.num_parallel))
}
