import { defineAudit } from './commands/audit.ts'
import { defineBench } from './commands/bench-model.ts'
import { defineCapture } from './commands/capture.ts'
import { defineCluster } from './commands/cluster-commands.ts'
import { defineCompletion } from './commands/completion.ts'
import { defineConfig } from './commands/config.ts'
import { defineDoctor } from './commands/doctor.ts'
import { defineDrain } from './commands/drain.ts'
import { defineImport } from './commands/import.ts'
import { defineKey } from './commands/key.ts'
import { defineLogs, definePs, defineStop } from './commands/loaded-models.ts'
import { defineLogLevel } from './commands/log-level.ts'
import { defineOpen } from './commands/open.ts'
import { definePlugins } from './commands/plugins.ts'
import { definePull, definePulls } from './commands/pull.ts'
import { defineReload } from './commands/reload.ts'
import { defineRun } from './commands/run.ts'
import { defineRuntime } from './commands/runtime.ts'
import { defineSearch } from './commands/search.ts'
import { defineServe } from './commands/serve.ts'
import { defineService } from './commands/service.ts'
import { defineConversion, defineConvert, defineList, defineRm, defineShow } from './commands/stored-models.ts'
import { defineTop } from './commands/top.ts'
import { defineUsage } from './commands/usage.ts'
import { defineVersion } from './commands/version.ts'
import { defineWorker } from './commands/worker.ts'
import type { CommandContext } from './context.ts'
import type { CorralCommand } from './corral-command.ts'

/** The commands by purpose, in the order of the help. */
export const COMMAND_GROUPS: [
  heading: string,
  defines: ((program: CorralCommand, context: CommandContext) => void)[]
][] = [
  ['Chat and serve:', [defineServe, defineOpen, defineRun, definePs, defineTop, defineStop, defineLogs, defineBench]],
  [
    'Models:',
    [
      defineSearch,
      definePull,
      definePulls,
      defineList,
      defineShow,
      defineRm,
      defineImport,
      defineConvert,
      defineConversion
    ]
  ],
  ['This machine:', [defineDoctor, defineRuntime, defineConfig, definePlugins, defineCompletion, defineVersion]],
  [
    'A shared server:',
    [
      defineWorker,
      defineService,
      defineKey,
      defineUsage,
      defineAudit,
      defineCapture,
      defineLogLevel,
      defineReload,
      defineDrain,
      defineCluster
    ]
  ]
]
