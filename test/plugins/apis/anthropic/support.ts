/** Parts of conversations in Anthropic's format. */
export const PNG = 'iVBORw0KGgo='
export const image = { type: 'image', source: { type: 'base64', media_type: 'image/png', data: PNG } }
export const text = (of: string) => ({ type: 'text', text: of })
export const user = (content: unknown) => ({ role: 'user', content })
export const assistant = (content: unknown) => ({ role: 'assistant', content })
export const result = (id: string, more: object = {}) => ({ type: 'tool_result', tool_use_id: id, ...more })
export const use = (id: string, name: string, input: object) => ({ type: 'tool_use', id, name, input })
