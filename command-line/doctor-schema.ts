import { type Static, Type } from 'typebox'
import { RuntimesReportSchema } from '../core/contracts/builds.ts'
import { PoolSchema } from '../core/contracts/native-records.ts'
import { Group, Integer, Text, Texts } from '../core/http/request-fields.ts'

const { hardware, release, ranking, chosen, attempts, installed } = RuntimesReportSchema.properties

const ConfigProblemSchema = Group('One error', {
  where: Text('Such as config.yaml:12:3, env CORRAL_PORT or flag --port'),
  file: Type.Optional(Text('Path of the file with the mistake')),
  line: Type.Optional(Integer('Counted from 1')),
  column: Type.Optional(Integer('Counted from 1')),
  setting: Type.Optional(Text('Name of the setting, such as security.api_keys')),
  message: Text('What is wrong and what is allowed'),
  passedOn: Type.Optional(
    Type.Literal(true, { description: 'True if it is an unknown request option, which engines receive anyway' })
  )
})

const HolderSchema = Type.Object({
  pid: Integer('Its process id'),
  startTime: Text('Start time of the process, as its system reports it'),
  host: Text('Host name of its machine'),
  address: Text('Address it listens on'),
  socket: Type.Optional(Text('Private socket for the user who runs it')),
  version: Text("corral's version")
})

/** Output of `corral doctor --json`. docs/doctor.md and docs/doctor.schema.json are generated from it. */
export const DoctorReportSchema = Type.Object(
  {
    corral: Text("corral's version"),
    node: Text('Version of Node.js'),
    platform: Text('Name and version of the operating system, and its architecture'),
    config: Group('The configuration', {
      file: Type.Union([Type.String(), Type.Null()], {
        description: 'Path of the configuration file, or null if there is none'
      }),
      problems: Type.Array(ConfigProblemSchema, {
        description: 'Errors. If any of them is more than an unknown setting, nothing else is examined'
      })
    }),
    data: Type.Optional(
      Group('The data directory', {
        home: Text('Path of the data directory'),
        holder: Type.Union([HolderSchema, Type.Null()], {
          description: 'Server that uses the data directory, or null if there is none'
        })
      })
    ),
    models: Type.Optional(
      Group('Where models are stored', {
        directory: Text('Path of the folder'),
        free: Integer('Free bytes on its disk')
      })
    ),
    state: Type.Optional(
      Type.Enum(['idle', 'searching', 'ready', 'failed'], {
        description:
          'State of the search for a llama.cpp build. idle: not started yet (--no-build); failed: none works on this machine'
      })
    ),
    hardware,
    memory: Type.Optional(
      Type.Array(PoolSchema, { description: 'Memory of models, if a server runs and the caller is an operator' })
    ),
    release: Type.Optional(release),
    ranking: {
      ...ranking,
      description: 'All kinds of llama.cpp builds in the order in which they are tried, best first'
    },
    chosen,
    attempts,
    installed,
    problems: Texts(
      'Everything that keeps corral from working or from using the hardware, in sentences. Empty if all is well'
    )
  },
  { title: 'Report of corral doctor', description: 'Sizes are in bytes. Unknown values are absent.' }
)
export type DoctorReport = Static<typeof DoctorReportSchema>
