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
        description: 'True if it is an unknown request option, which engines receive anyway'
      })
    )
  },
  { description: 'One error' }
)

/** Output of `corral doctor --json`. docs/doctor.md and docs/doctor.schema.json are generated from it. */
export const DoctorReportSchema = Type.Object(
  {
    corral: Type.String({ description: "corral's version" }),
    node: Type.String({ description: 'Version of Node.js' }),
    platform: Type.String({ description: 'Name and version of the operating system, and its architecture' }),
    config: Type.Object(
      {
        file: Type.Union([Type.String(), Type.Null()], {
          description: 'Path of the configuration file, or null if there is none'
        }),
        problems: Type.Array(ConfigProblemSchema, {
          description: 'Errors. If any of them is more than an unknown setting, nothing else is examined'
        })
      },
      { description: 'The configuration' }
    ),
    data: Type.Optional(
      Type.Object(
        {
          home: Type.String({ description: 'Path of the data directory' }),
          holder: Type.Union(
            [
              Type.Object({
                pid: Type.Integer({ description: 'Its process id' }),
                startTime: Type.String({ description: 'Start time of the process, as its system reports it' }),
                host: Type.String({ description: 'Host name of its machine' }),
                address: Type.String({ description: 'Address it listens on' }),
                socket: Type.Optional(Type.String({ description: 'Private socket for the user who runs it' })),
                version: Type.String({ description: "corral's version" })
              }),
              Type.Null()
            ],
            { description: 'Server that uses the data directory, or null if there is none' }
          )
        },
        { description: 'The data directory' }
      )
    ),
    models: Type.Optional(
      Type.Object(
        {
          directory: Type.String({ description: 'Path of the folder' }),
          free: Type.Integer({ description: 'Free bytes on its disk' })
        },
        { description: 'Where models are stored' }
      )
    ),
    state: Type.Optional(
      Type.Enum(['idle', 'searching', 'ready', 'failed'], {
        description:
          'State of the search for a llama.cpp build. idle: not started yet (--no-build); failed: none works on this machine'
      })
    ),
    hardware,
    release: Type.Optional(release),
    ranking: {
      ...ranking,
      description: 'All kinds of llama.cpp builds in the order in which they are tried, best first'
    },
    chosen,
    attempts,
    installed,
    problems: Type.Array(Type.String(), {
      description:
        'Everything that keeps corral from working or from using the hardware, in sentences. Empty if all is well'
    })
  },
  { title: 'Report of corral doctor', description: 'Sizes are in bytes. Unknown values are absent.' }
)
export type DoctorReport = Static<typeof DoctorReportSchema>
