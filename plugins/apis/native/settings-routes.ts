import { createHash } from 'node:crypto'
import { isDeepStrictEqual } from 'node:util'
import type { FastifyInstance } from 'fastify'
import { type Static, Type } from 'typebox'
import { ModelSettingsSchema } from '../../../core/config/core-schema.ts'
import { type OptionLayer, optionLayers, settingsFor } from '../../../core/config/model-settings.ts'
import { type ModelPreview, ModelPreviewSchema, ReloadReportSchema } from '../../../core/contracts/native-records.ts'
import { CorralError, errorCodes } from '../../../core/errors.ts'
import { each, keep_alive, loose, named, options, Titled } from '../../../core/http/request-fields.ts'
import { FILE_ERRORS, json, nativeRouter } from '../../../core/http/response-schemas.ts'
import { catalogFor } from '../../../core/models/allowed-models.ts'
import { parseRequestedName } from '../../../core/models/model-name.ts'
import { parseKeepAlive, parseOptions } from '../../../core/models/options.ts'
import { isObject } from '../../../core/system/json-object.ts'
import type { NativeDependencies } from './native-dependencies.ts'
import { requestedName } from './records.ts'

type Values = Record<string, unknown>

const SettingsSchema = Type.Object({}, { ...loose, documented: ModelSettingsSchema })

const ModelSettingsReplySchema = Titled('ModelSettings', {
  ...each(Type.String(), 'model', 'section', 'file'),
  settings: SettingsSchema,
  revision: Type.String()
})

/** The default of `scheduler.keep_alive`. */
const DEFAULT_KEEP_ALIVE_MS = 300_000

const sum = (numbers: readonly number[]) => numbers.reduce((total, each) => total + each, 0)

const EDIT_ERRORS = [...FILE_ERRORS, ...errorCodes('invalid_config config_not_editable not_implemented')]

/** Settings that affect more than models: file paths, and the environment of programs. */
const MACHINE_SETTINGS = ['environment', 'lora', 'projector']

export function settingsRoutes(app: FastifyInstance, { catalog, config, scheduler }: NativeDependencies): void {
  const route = nativeRouter(app, 'Models')

  route('GET /models/settings', 'getModelSettings', "Show a model's settings in the configuration file", {
    role: 'admin',
    querystring: Type.Object({ model: Type.String({ description: '<owner>/<name> or <owner>/<name>:<variant>' }) }),
    response: json('What the file sets', ModelSettingsReplySchema),
    errors: EDIT_ERRORS,
    handler: async ({ query, caller }): Promise<Static<typeof ModelSettingsReplySchema>> => {
      const variant = catalogFor(catalog, caller).get(parseRequestedName(query.model))
      const { path, text } = await app.configEditor.file()
      const { publicName: model, label } = variant
      return { model, file: path, ...sectionIn(await loadYaml(), text ?? '', model, label) }
    }
  })

  route('POST /models/preview', 'previewModel', 'Show the options of a model, and what it would take with others', {
    audited: false,
    body: Titled('PreviewRequest', { ...named, options, keep_alive }),
    response: json(
      'The options in force, and the memory that the model would take with the options of the request',
      ModelPreviewSchema
    ),
    errors: [...FILE_ERRORS, 'invalid_option', 'unsupported_capability'],
    handler: async ({ body, caller }): Promise<ModelPreview> => {
      const variant = catalogFor(catalog, caller).get(parseRequestedName(requestedName(body)))
      const { load } = parseOptions(body.options)
      parseKeepAlive(body.keep_alive)
      const now = await scheduler.preview(variant, load, caller)
      const { keepAlive, pin, growsContext } = settingsFor(config, variant)
      const seconds = (ms: number) => (ms < 0 || ms === Number.POSITIVE_INFINITY ? -1 : ms / 1000)
      const layer = (value: unknown, from: OptionLayer['from']) => ({ value, from })
      return {
        model: variant.publicName,
        options: {
          ...optionLayers(config, variant),
          keep_alive: [
            ...(keepAlive === undefined ? [] : [layer(seconds(keepAlive), 'settings')]),
            layer(seconds(now.keepAlive), now.keepAlive === DEFAULT_KEEP_ALIVE_MS ? 'default' : 'config')
          ],
          pin: [...(pin ? [layer(true, 'settings')] : []), layer(false, 'default')]
        },
        grows: growsContext,
        ...(now.options && { load: now.options }),
        ...(now.limited && { limited: now.limited }),
        ...(now.use && now.fits && { memory: now.use, size: sum(Object.values(now.use)), fits: now.fits })
      }
    }
  })

  route('PUT /models/settings', 'setModelSettings', "Change a model's settings in the configuration file", {
    role: 'admin',
    body: Titled('ModelSettingsRequest', {
      ...named,
      settings: SettingsSchema,
      revision: Type.String()
    }),
    response: json('What has changed', ReloadReportSchema),
    errors: [...EDIT_ERRORS, 'settings_changed', 'path_not_allowed', 'reload_failed'],
    handler: async ({ body, caller }) => {
      const { publicName: model, label } = catalogFor(catalog, caller).get(parseRequestedName(requestedName(body)))
      const yaml = await loadYaml()
      return await app.configEditor.rewrite(({ path, text }) => {
        const { section, settings, revision } = sectionIn(yaml, text, model, label)
        if (revision !== body.revision) {
          const message = `The settings of "${model}" have changed since they were read. Read them again (GET /api/models/settings), then send the change with their revision.`
          throw new CorralError('settings_changed', message, { param: 'revision' })
        }
        const changes = diffSettings(settings, body.settings as Values)
        const refused = caller.isLocal ? undefined : MACHINE_SETTINGS.find(name => name in changes)
        if (refused !== undefined) {
          const sentence = `${refused} affects the server's machine and cannot be changed over the network. Change it in ${path}, then run "corral reload".`
          throw new CorralError('path_not_allowed', sentence, { param: `settings.${refused}` })
        }
        if (Object.keys(changes).length === 0) return text
        const changed = yaml.withModelSettings(text, section, changes)
        if (changed === undefined) {
          throw new CorralError(
            'config_not_editable',
            `The settings of "${section}" in ${path} cannot be changed without affecting others, for example because of a YAML anchor. Edit the file by hand, then run "corral reload".`
          )
        }
        return changed
      })
    }
  })
}

/** YAML support is imported on demand, because a server without a configuration file does not need it. */
async function loadYaml() {
  const [file, edit] = await Promise.all([
    import('../../../core/config/yaml-file.ts'),
    import('../../../core/config/yaml-edit.ts')
  ])
  return { ...file, ...edit }
}

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

/** Returns the settings to set, or to remove (undefined), one by one, to get from one state to the other. */
function diffSettings(from: Values, to: Values, isOptions = false): Values {
  const changes: Values = {}
  for (const name of new Set([...Object.keys(from), ...Object.keys(to)])) {
    const [old, wanted] = [from[name], to[name] ?? undefined]
    if (isDeepStrictEqual(old, wanted)) continue
    const isGroup = name === 'options' && !isOptions && isObject(old) && isObject(wanted)
    changes[name] = isGroup ? diffSettings(old, wanted, true) : wanted
  }
  return changes
}
