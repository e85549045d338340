import { Type } from 'typebox'
import { watchConfig } from '../../../core/config/config-watch.ts'
import { Path, Program } from '../../../core/config/core-schema.ts'
import { definePlugin } from '../../../core/plugins/plugin.ts'
import { rayPlaces } from './ray-cluster.ts'
import { RaySource } from './ray-source.ts'

/** Milliseconds between two checks for another cluster. A new cluster takes longer to start. */
const RECORD_CHECK_MS = 3000

const options = Type.Object(
  {
    address: Type.String({
      default: '',
      pattern: '^([^\\s/]+:\\d+)?$',
      title: 'an address such as 10.0.0.5:6379',
      description: 'Ray\'s head, whose nodes answer for this server; empty means that of "corral cluster up"'
    }),
    token_file: Path({
      default: '',
      description: 'File with the cluster\'s token; empty means that of "corral cluster up", or the one that Ray finds'
    }),
    python: Program({
      default: '',
      description: "Python with the cluster's version of Ray; if empty, corral makes its own environment"
    }),
    package_index: Type.String({
      default: '',
      pattern: '^(https?://\\S+)?$',
      title: 'an address such as https://pypi.org/simple',
      description: 'Package index to install from; if empty, the settings of pip and uv apply'
    })
  },
  { additionalProperties: false, restart: true, needsTrust: true }
)

export default definePlugin({
  name: 'cluster-ray',
  api: 1,
  description: 'Members that Ray starts on its nodes ("corral cluster up")',
  optional: true,
  needs: ['cluster'],
  options,
  setup(context, settings) {
    const { log, paths } = context
    const source = new RaySource({ settings, home: paths.home, log })
    context.service('cluster').addSource(source)
    const { record } = rayPlaces(paths.home)
    // The commands write which cluster it is.
    let unwatch = () => {}
    return {
      start() {
        if (settings.address !== '') return
        unwatch = watchConfig(
          () => record,
          () => void source.look(),
          RECORD_CHECK_MS
        )
      },
      stop: () => unwatch()
    }
  }
})
