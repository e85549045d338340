import { createHash } from 'node:crypto'
import { isDeepStrictEqual } from 'node:util'
import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox'
import type { FastifyPluginAsync } from 'fastify'
import { type Static, Type } from 'typebox'
import { ModelSettingsSchema } from '../../../core/config/core-schema.ts'
import { ReloadReportSchema } from '../../../core/contracts/native-records.ts'
import { CorralError } from '../../../core/errors.ts'
import { Loose, loose, named, Titled } from '../../../core/http/request-fields.ts'
import { FILE_ERRORS, json, nativeRoute } from '../../../core/http/response-schemas.ts'
import { catalogFor } from '../../../core/models/allowed-models.ts'
import { parseRequestedName } from '../../../core/models/model-name.ts'
import { isObject } from '../../../core/system/json-object.ts'
import type { NativeDependencies } from './native-dependencies.ts'
import { nameOf } from './records.ts'

type Values = Record<string, unknown>

const SettingsSchema = Type.Object({}, { ...loose, documented: ModelSettingsSchema })

/** What the configuration file sets for one model. */
const ModelSettingsReplySchema = Loose(
  {
    model: Type.String({ description: 'The name of the variant' }),
    section: Type.String({ description: 'Its name under models in the file, which need not be there yet' }),
    file: Type.String({ description: 'The file; it is made by the first change where it is not there' }),
    settings: SettingsSchema,
    revision: Type.String({ description: 'Changes with the settings; sent back with new ones' })
  },
  { title: 'ModelSettings' }
)

/** What reaches into the machine beyond models: files by their paths, and what programs are started with. */
const OF_THE_MACHINE = ['environment', 'lora', 'projector']

/** The settings of single models in the configuration file, read and written there. */
export function settingsRoutes({ catalog }: NativeDependencies): FastifyPluginAsync {
  return async instance => {
    const app = instance.withTypeProvider<TypeBoxTypeProvider>()

    const show = nativeRoute('Models', 'getModelSettings', "Show a model's settings in the configuration file", {
      role: 'admin',
      description: 'As they are written there, without defaults and what the model was made with.',
      querystring: Type.Object({ model: Type.String({ description: '<owner>/<name> or <owner>/<name>:<variant>' }) }),
      response: { 200: json('What the file sets', ModelSettingsReplySchema) },
      errors: [...FILE_ERRORS, 'invalid_config', 'config_not_editable', 'not_implemented']
    })
    app.get('/models/settings', show, async ({ query, caller }): Promise<Static<typeof ModelSettingsReplySchema>> => {
      const variant = catalogFor(catalog, caller).get(parseRequestedName(query.model))
      const { path, text } = await app.configEditor.file()
      const { publicName: model, label } = variant
      return { model, file: path, ...sectionIn(await loadYaml(), text ?? '', model, label) }
    })

    const change = nativeRoute('Models', 'setModelSettings', "Change a model's settings in the configuration file", {
      role: 'admin',
      description:
        'They take the place of all that the file sets for the model; comments and everything else stay as they are. Then the configuration is read again: a model that is loaded with other options is loaded anew by its next request. Mistakes are refused as when corral starts, with `invalid_config`, and nothing is written then. `environment`, `lora` and `projector` can be changed only by the private socket or in the file.',
      body: Titled('ModelSettingsRequest', {
        ...named,
        settings: SettingsSchema,
        revision: Type.String({ description: 'That of the settings that were read' })
      }),
      response: { 200: json('What has changed', ReloadReportSchema) },
      errors: [
        ...FILE_ERRORS,
        'invalid_config',
        'config_not_editable',
        'settings_changed',
        'path_not_allowed',
        'reload_failed',
        'not_implemented'
      ]
    })
    app.put('/models/settings', change, async ({ body, caller }) => {
      const { publicName: model, label } = catalogFor(catalog, caller).get(parseRequestedName(nameOf(body)))
      const yaml = await loadYaml()
      return await app.configEditor.rewrite(({ path, text }) => {
        const { section, settings, revision } = sectionIn(yaml, text, model, label)
        if (revision !== body.revision) {
          throw new CorralError(
            'settings_changed',
            `The settings of "${model}" were changed since they were read. Read them again (GET /api/models/settings), then send the change with their revision.`,
            { param: 'revision' }
          )
        }
        const changes = changesOf(settings, body.settings as Values)
        const refused = caller.isLocal ? undefined : OF_THE_MACHINE.find(name => name in changes)
        if (refused !== undefined) {
          throw new CorralError(
            'path_not_allowed',
            `${refused} reaches into the server's machine, so that it cannot be changed over the network: change it in ${path}, then "corral reload".`,
            { param: `settings.${refused}` }
          )
        }
        if (Object.keys(changes).length === 0) return text
        const changed = yaml.withModelSettings(text, section, changes)
        if (changed === undefined) {
          throw new CorralError(
            'config_not_editable',
            `${path} is written so that the settings of "${section}" cannot be changed without those of others, such as by an anchor. Change it by hand, then "corral reload".`
          )
        }
        return changed
      })
    })
  }
}

/** What reads and changes YAML; a start without a configuration file does without it. */
async function loadYaml() {
  const [file, edit] = await Promise.all([
    import('../../../core/config/yaml-file.ts'),
    import('../../../core/config/yaml-edit.ts')
  ])
  return { ...file, ...edit }
}

/** What a configuration's text sets for a variant. Settings without a value count as not set. */
function sectionIn(
  { readYaml, sectionName }: Awaited<ReturnType<typeof loadYaml>>,
  text: string,
  model: string,
  label: string
) {
  const { value } = readYaml(text)
  const section = sectionName(value, model, label)
  const models = isObject(value) && isObject(value.models) ? value.models : {}
  const settings = withValues(isObject(models[section]) ? models[section] : {})
  if (isObject(settings.options)) settings.options = withValues(settings.options)
  const revision = createHash('sha256')
    .update(JSON.stringify([section, settings]))
    .digest('hex')
    .slice(0, 16)
  return { section, settings, revision }
}

const withValues = (values: Values) => Object.fromEntries(Object.entries(values).filter(([, value]) => value !== null))

/** What must be set, and removed (undefined), so that some settings become others; options one by one. */
function changesOf(from: Values, to: Values, isOptions = false): Values {
  const changes: Values = {}
  for (const name of new Set([...Object.keys(from), ...Object.keys(to)])) {
    const [old, wanted] = [from[name], to[name] ?? undefined]
    if (isDeepStrictEqual(old, wanted)) continue
    const isGroup = name === 'options' && !isOptions && isObject(old) && isObject(wanted)
    changes[name] = isGroup ? changesOf(old, wanted, true) : wanted
  }
  return changes
}
