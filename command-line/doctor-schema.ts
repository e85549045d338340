import { type Static, Type } from 'typebox'
import { RuntimesReportSchema } from '../core/contracts/builds.ts'

const { hardware, release, ranking, chosen, attempts, installed } = RuntimesReportSchema.properties

const ConfigProblemSchema = Type.Object(
  {
    where: Type.String({ description: 'Such as config.yaml:12:3, env CORRAL_PORT or flag --port' }),
    file: Type.Optional(Type.String({ description: 'Path of the file with the mistake' })),
    line: Type.Optional(Type.Integer({ description: 'Counted from 1' })),
    column: Type.Optional(Type.Integer({ description: 'Counted from 1' })),
    setting: Type.Optional(Type.String({ description: 'Name of the setting, such as security.api_keys' })),
    message: Type.String({ description: 'What is wrong and what is allowed' }),
    passedOn: Type.Optional(
      Type.Literal(true, {
        description: 'It is an option of requests that nobody knows, which engines get all the same'
      })
    )
  },
  { description: 'One mistake' }
)

/** What `corral doctor --json` prints; docs/doctor.md and docs/doctor.schema.json are made of it. */
export const DoctorReportSchema = Type.Object(
  {
    corral: Type.String({ description: "corral's version" }),
    node: Type.String({ description: 'Version of Node.js' }),
    platform: Type.String({ description: 'Name and version of the operating system, and its architecture' }),
    config: Type.Object(
      {
        file: Type.Union([Type.String(), Type.Null()], {
          description: 'Path of the configuration file; null when there is none'
        }),
        problems: Type.Array(ConfigProblemSchema, {
          description: 'Mistakes; unless they are only unknown settings, nothing else is examined'
        })
      },
      { description: 'The configuration' }
    ),
    data: Type.Optional(
      Type.Object(
        {
          home: Type.String({ description: 'Its path' }),
          holder: Type.Union(
            [
              Type.Object({
                pid: Type.Integer({ description: 'Its process id' }),
                startTime: Type.String({ description: 'When the process started, as its system reports it' }),
                host: Type.String({ description: 'Name of its machine' }),
                address: Type.String({ description: 'Where it listens' }),
                socket: Type.Optional(Type.String({ description: 'Its private socket, for the user who runs it' })),
                version: Type.String({ description: "corral's version" })
              }),
              Type.Null()
            ],
            { description: 'The server that runs on it; null when none does' }
          )
        },
        { description: 'The data directory' }
      )
    ),
    models: Type.Optional(
      Type.Object(
        {
          directory: Type.String({ description: 'Its path' }),
          free: Type.Integer({ description: 'Free bytes on its disk' })
        },
        { description: 'Where models are stored' }
      )
    ),
    state: Type.Optional(
      Type.Enum(['idle', 'searching', 'ready', 'failed'], {
        description: 'Of the search for a llama.cpp build. idle: not started yet (--no-build); failed: none works here'
      })
    ),
    hardware,
    release: Type.Optional(release),
    ranking: {
      ...ranking,
      description: 'Every kind of llama.cpp build, in the order in which they are tried: best first'
    },
    chosen,
    attempts,
    installed,
    problems: Type.Array(Type.String(), {
      description: 'What keeps corral from working or from using the hardware, in sentences; empty when all is well'
    })
  },
  { title: 'Report of corral doctor', description: 'Sizes are in bytes. What is not known is absent.' }
)
export type DoctorReport = Static<typeof DoctorReportSchema>
