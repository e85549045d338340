import type { Build } from '../../../core/contracts/builds.ts'
import type { MemoryUse } from '../../../core/contracts/engines.ts'
import { errorMessage } from '../../../core/errors.ts'
import type { ToolLog } from '../../../core/system/child-process.ts'
import { engineArguments } from '../arguments.ts'
import type { LaunchSpec } from '../launch-spec.ts'
import { knownFlags, type QueryOptions, runForLines } from '../server-facts.ts'

/** Milliseconds. It reads a header and queries the devices, which takes a fraction of a second. */
const LIMIT = 15_000
const MIB = 2 ** 20
/** Flags that would change its output or its task. */
const NOT_SHARED = new Set(['--log-jsonl', '--log-file', '--verbosity', '-lv', '--log-verbosity', '-v', '--verbose'])

/** Whether an argument is a flag. `-1` is a value. */
const isFlag = (argument: string) => /^--?[a-z]/i.test(argument)

/** Selects the flags, with their values, that another program also knows by its `--help`. Pure. */
export function sharedArguments(list: readonly string[], known: ReadonlySet<string>): string[] {
  let kept = true
  return list.filter(argument => {
    if (isFlag(argument)) kept = known.has(argument) && !NOT_SHARED.has(argument)
    return kept
  })
}

/**
 * Parses the rows of `--fit-print on`: MiB of weights, context and compute buffers by pool. Undefined for other text.
 */
export function parseFitPrint(lines: readonly string[]): MemoryUse | undefined {
  const use: MemoryUse = {}
  for (const line of lines) {
    const row = /^(\S+) (\d+) (\d+) (\d+)\s*$/.exec(line.trim())
    if (!row) continue
    const [, name, ...parts] = row
    const bytes = parts.reduce((sum, part) => sum + Number(part), 0) * MIB
    if (name === 'Host') use.host = bytes
    else if (bytes > 0) use[name!] = bytes
  }
  return use.host === undefined ? undefined : use
}

/**
 * Returns the bytes by pool of the model itself by llama.cpp's own estimate. Undefined without it. Throws only aborts.
 */
export async function estimateMemory(
  build: Build,
  spec: LaunchSpec,
  { log, signal, environment, extraArguments }: QueryOptions & { log: ToolLog; extraArguments?: readonly string[] }
): Promise<MemoryUse | undefined> {
  const program = build.executables.fitParams
  if (program === undefined) return undefined
  const variables = { ...environment, ...spec.settings?.environment }
  try {
    const known = await knownFlags(build, program, { environment: variables, signal })
    signal?.throwIfAborted()
    if (!known?.has('--fit-print')) return undefined
    const list = engineArguments(spec, {
      listen: { host: '127.0.0.1', port: 0 },
      extra: extraArguments
    })
    const flags = [...sharedArguments(list, known), '--fit-print', 'on']
    return parseFitPrint(await runForLines(program, flags, { environment: variables, signal, timeout: LIMIT }))
  } catch (error) {
    signal?.throwIfAborted()
    log.debug(
      { model: spec.alias, reason: errorMessage(error) },
      'llama-fit-params could not estimate the memory of the model.'
    )
    return undefined
  }
}
