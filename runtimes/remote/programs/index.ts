import { type Static, Type } from 'typebox'
import { ConfigError } from '../../../core/config/config-error.ts'
import { Bytes, Path, Timeout } from '../../../core/config/core-schema.ts'
import type { BroughtModel, Capability, Model } from '../../../core/contracts/models.ts'
import { errorMessage } from '../../../core/errors.ts'
import { parseModelName } from '../../../core/models/model-name.ts'
import { definePlugin } from '../../../core/plugins/plugin.ts'
import { parseBytes } from '../../../core/system/bytes.ts'
import { parseDuration } from '../../../core/system/duration.ts'
import { splitCommand } from './program-command.ts'
import { PROGRAM_KINDS, type ProgramKind } from './program-engine.ts'
import type { ProgramModel, ProgramSettings } from './program-provider.ts'

const Program = Type.Object(
  {
    command: Type.String({
      minLength: 1,
      description:
        'Program and arguments, without a shell; {port}, {model} (its "files", or else its name) and {key} (a fresh secret that requests carry) are filled in'
    }),
    kind: Type.Optional(Type.Enum([...PROGRAM_KINDS], { description: 'What its models are for; chat if absent' })),
    ready: Type.Optional(
      Type.String({
        pattern: '^/',
        description: 'Path that answers with a status below 300 once it is ready; /health if absent'
      })
    ),
    base: Type.Optional(
      Type.String({ pattern: '^(/.*)?$', description: "Path of its API in OpenAI's format; /v1 if absent" })
    ),
    port: Type.Optional(
      Type.Integer({ minimum: 1, maximum: 65535, description: 'Port that its command fixes; a free one if absent' })
    ),
    parallel: Type.Optional(
      Type.Integer({ minimum: 1, description: 'Maximum requests at the same time; 8 if absent' })
    ),
    context: Type.Optional(Type.Integer({ minimum: 1, description: 'Context size in tokens; 4096 if absent' })),
    capabilities: Type.Optional(
      Type.Array(Type.Enum(['tools', 'thinking', 'vision']), {
        description: 'What a chat model can do; tools if absent'
      })
    ),
    memory: Type.Optional(
      Type.Record(Type.String(), Bytes({ description: 'Bytes' }), {
        description: 'Memory that it needs, by host or GPU as in "corral ps"; its main memory is measured if absent'
      })
    ),
    sleep: Type.Optional(
      Type.Object(
        {
          path: Type.String({ pattern: '^/', description: 'POST here makes it give up its memory' }),
          wake: Type.String({ pattern: '^/', description: 'POST here makes it ready again' }),
          for: Type.Optional(Timeout({ description: 'How long it sleeps before it is ended; 1h if absent' }))
        },
        { additionalProperties: false, description: 'How it sleeps instead of being ended' }
      )
    ),
    environment: Type.Optional(
      Type.Record(Type.String(), Type.String(), { description: 'More environment variables' })
    ),
    directory: Type.Optional(Path({ description: 'Its working directory' })),
    start_timeout: Type.Optional(Timeout({ description: 'How long it may take to become ready; 10m if absent' })),
    stop_timeout: Type.Optional(
      Timeout({ description: 'How long it may take to end before it is killed; 5s if absent' })
    )
  },
  { additionalProperties: false }
)

const CAPABILITIES: Record<Exclude<ProgramKind, 'chat'>, Capability[]> = {
  embedding: ['embedding'],
  rerank: ['rerank'],
  transcribe: ['audio']
}

export default definePlugin({
  name: 'engines',
  api: 1,
  description: 'Programs that serve models in the OpenAI format, started by their commands',
  needs: ['engines', 'catalog', 'hardware'],
  options: Type.Object(
    {},
    {
      patternProperties: { '^': Program },
      examples: [
        {
          vllm: {
            command: 'vllm serve {model} --port {port} --enable-sleep-mode',
            kind: 'chat',
            ready: '/health',
            base: '/v1',
            port: 8000,
            parallel: 8,
            context: 32768,
            capabilities: ['tools'],
            memory: { host: '4GiB', gpu0: '20GiB' },
            sleep: { path: '/sleep?level=1', wake: '/wake_up', for: '1h' },
            environment: { VLLM_SERVER_DEV_MODE: '1' },
            directory: '/srv/vllm',
            start_timeout: '10m',
            stop_timeout: '5s'
          }
        }
      ],
      restart: true,
      needsTrust: true
    }
  ),
  async setup({ config, service, log }, options) {
    const programs = options as Record<string, Static<typeof Program>>
    const models = new Map<string, ProgramModel>()
    const brought: BroughtModel[] = []
    for (const [name, { engine, files }] of Object.entries(config.models)) {
      if (engine === undefined) continue
      const program = programs[engine]
      if (!program) throw unknownEngine(name, engine, Object.keys(programs))
      const { owner, name: own } = parseModelName(name)
      const settings = readProgram(engine, program)
      models.set(name.toLowerCase(), { program: settings, model: files ?? `${owner}/${own}` })
      brought.push({
        name,
        capabilities:
          settings.kind === 'chat'
            ? ['completion', ...(program.capabilities ?? ['tools' as const])]
            : CAPABILITIES[settings.kind],
        contextLength: settings.contextSize
      })
    }
    if (brought.length === 0) return {}
    // Most configurations have no programs.
    const { createProgramProvider } = await import('./program-provider.ts')
    const frozen = Object.freeze(brought)
    const find = ({ format, model, key }: Model) =>
      format === 'engines' ? (models.get(`${model.owner}/${model.name}`.toLowerCase()) ?? models.get(key)) : undefined
    service('catalog').add({ name: 'engines', models: () => frozen })
    service('engines').add(createProgramProvider(find, { log, hardware: service('hardware') }))
    return {}
  }
})

function readProgram(name: string, program: Static<typeof Program>): ProgramSettings {
  const { kind = 'chat', memory, sleep } = program
  const time = (given: string | number | undefined, usual: string) => parseDuration(given ?? usual)!
  let command: string[]
  try {
    command = splitCommand(program.command)
  } catch (error) {
    throw mistake(`engines.${name}.command`, `The command cannot be read: ${errorMessage(error)}.`)
  }
  if (program.port === undefined && !command.some(part => part.includes('{port}'))) {
    throw mistake(
      `engines.${name}.command`,
      'The command lacks {port}. Add it where the program gets its port, or set "port".'
    )
  }
  return {
    name,
    kind,
    command,
    environment: program.environment ?? {},
    directory: program.directory,
    port: program.port,
    ready: program.ready ?? '/health',
    base: program.base ?? '/v1',
    contextSize: program.context ?? 4096,
    slots: program.parallel ?? 8,
    memory: memory && Object.fromEntries(Object.entries(memory).map(([pool, bytes]) => [pool, parseBytes(bytes)!])),
    sleep: sleep && { path: sleep.path, wake: sleep.wake, for: time(sleep.for, '1h') },
    startTimeout: time(program.start_timeout, '10m'),
    stopTimeout: time(program.stop_timeout, '5s')
  }
}

const mistake = (setting: string, message: string) => new ConfigError([{ where: setting, setting, message }])

function unknownEngine(model: string, engine: string, known: readonly string[]): ConfigError {
  const list = known.length > 0 ? `These exist: ${known.join(', ')}.` : 'There are none.'
  return mistake(`models.${model}.engine`, `There is no program "${engine}" under "engines". ${list}`)
}
